//! The simulated device puts everything where a Hopper GPU did.

use cuda_std::sim::{Launch, Memory, Report, Swizzle, encode_tensor_map};
use cuda_std::tma::ParamAddress;
use flash_attention_layouts::*;
use std::path::Path;

fn simulate(name: &str, threads: u32, seed: u64) -> (Report, Vec<u32>) {
    let mut memory = Memory::new();
    let base = memory.upload("input", &input().collect::<Vec<u16>>());
    let output = memory.output::<u32>("output", WORDS);
    memory.write(output, &[0u32; WORDS]);
    let strides = [TMA_ROW_BYTES, 100 * TMA_ROW_BYTES, 100 * TMA_ROW_BYTES];
    let map = encode_tensor_map(base, &TMA_DIMS, &strides, &[64, 64, 1, 1], 2, Swizzle::Bytes128);
    let params = Params { map, input: base, output };
    let address = ParamAddress(&raw const params as u64);
    let launch = Launch::new(name, 1, threads).shared(SHARED_BYTES).seed(seed);
    // SAFETY: the simulated device checks every access.
    let report = launch.run(&mut memory, || unsafe {
        match name {
            "layout_mma" => layout_mma(params),
            "layout_ldmatrix" => layout_ldmatrix(params),
            "layout_tma" => layout_tma(params, address),
            "layout_wgmma_shared" => layout_wgmma_shared(params),
            "layout_wgmma_registers" => layout_wgmma_registers(params),
            _ => unreachable!("{name} is no kernel of this crate"),
        }
    });
    (report, memory.read(output, WORDS))
}

#[test]
fn the_kernels_are_clean_and_do_something() {
    for (name, threads) in KERNELS {
        let (report, words) = simulate(name, threads, 1);
        report.expect_clean();
        assert!(words.iter().filter(|&&word| word != 0).count() > 100, "{name}");
        assert_eq!(simulate(name, threads, 2).1, words, "{name}");
    }
}

/// Fixtures are lines of hexadecimal words, eight a line, as the example `capture` writes them.
#[test]
fn the_simulated_device_agrees_with_the_gpu() {
    for (name, threads) in KERNELS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fixtures/{name}.txt"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|why| {
            panic!("{}: {why}; the example `capture` makes it on a Hopper GPU", path.display())
        });
        let captured: Vec<u32> = text
            .split_whitespace()
            .map(|word| u32::from_str_radix(word, 16).expect("a word in hexadecimal"))
            .collect();
        let (_, words) = simulate(name, threads, 0);
        assert_eq!(captured.len(), WORDS, "{name}");
        let told = captured.iter().filter(|&&word| word != 0).count();
        assert!(told > 100, "{name}: a fixture of {told} words says nothing");
        for (at, (found, expected)) in words.iter().zip(&captured).enumerate() {
            assert_eq!(found, expected, "{name}: word {at}");
        }
    }
}
