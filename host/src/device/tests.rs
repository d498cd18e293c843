use super::*;

#[test]
fn devices_have_names() {
    for (name, device) in [("cpu", Device::Cpu), ("cuda", Device::Cuda(0)), ("cuda:3", Device::Cuda(3))] {
        assert_eq!(name.parse::<Device>(), Ok(device));
    }
    for name in ["", "gpu", "cuda3", "cuda:", "cuda:x", "CPU"] {
        let message = name.parse::<Device>().unwrap_err().to_string();
        assert!(message.ends_with("but must be cpu, cuda or cuda:N; leave it out for auto"), "{message}");
    }
}

#[test]
fn a_gpu_that_is_not_there_is_unavailable() {
    let message = Stream::new(Device::Cuda(4096)).unwrap_err().to_string();
    let known = ["no NVIDIA driver found: ", "the NVIDIA driver ", "there is no GPU number 4096"];
    assert!(known.iter().any(|start| message.starts_with(start)), "{message}");
}

/// In the environment of the process that looks at the overrides: the answer that it has to give.
const EXPECTED: &str = "FLASH_ATTENTION_TEST_OVERRIDES";

/// In processes of their own, because a variable belongs to the whole process.
#[test]
fn the_environment_overrides_device_and_kernel() {
    if let Ok(expected) = std::env::var(EXPECTED) {
        let words = |e: Error| e.to_string();
        let device = Device::auto().map_or_else(words, |device| device.to_string());
        let kernel =
            kernel_override().map_or_else(words, |family| family.map_or("auto", Family::name).to_owned());
        assert_eq!(format!("{device} | {kernel}"), expected);
        return;
    }
    let (_, path) = concat!(module_path!(), "::the_environment_overrides_device_and_kernel")
        .split_once("::")
        .expect("the crate's name comes first");
    for (device, kernel, expected) in [
        ("cpu", "", "cpu | auto"),
        ("cuda:3", "auto", "cuda:3 | auto"),
        ("cuda", "tiled", "cuda:0 | tiled"),
        (
            "gpu",
            "sm70",
            "device is gpu, but must be cpu, cuda or cuda:N; leave it out for auto | kernel is sm70, but must \
             be standard, tiled, sm80 or sm90; leave it out for the plan's choice",
        ),
    ] {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", path])
            .envs([
                ("FLASH_ATTENTION_DEVICE", device),
                ("FLASH_ATTENTION_KERNEL", kernel),
                (EXPECTED, expected),
            ])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("1 passed"), "{device}, {kernel}: {said}");
    }
}

#[test]
fn handles_cross_threads() {
    fn crosses<T: Send + Sync>() {}
    crosses::<Stream>();
    crosses::<crate::Tensor<f32>>();
    crosses::<crate::TensorView<'_, f32>>();
}
