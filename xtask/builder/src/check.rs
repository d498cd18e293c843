//! What a kernel must be like to ship, read from its text and from what ptxas says.

use crate::CudaArch;
use crate::convergence;
use crate::ptx::Module;
use crate::ptxas::Usage;

/// What is wrong with a module that should hold exactly `expected`.
pub fn module(module: &Module<'_>, arch: CudaArch, expected: &[&str]) -> Vec<String> {
    let mut findings = Vec::new();
    if module.target() != arch.name() {
        findings.push(format!("the PTX is for target {:?}, not {}", module.target(), arch.name()));
    }
    if module.version() != arch.ptx_version() {
        let (found, wanted) = (module.version(), arch.ptx_version());
        findings
            .push(format!("the PTX is of version {found:?}, not {wanted}: other drivers than meant take it"));
    }
    let found: Vec<&str> = module.entries().collect();
    for name in expected.iter().filter(|name| !found.contains(name)) {
        findings.push(format!("{name} is in the table of entries, but not in the PTX for {}", arch.name()));
    }
    for name in found.iter().filter(|name| !expected.contains(name)) {
        findings.push(format!("{name} is in the PTX for {}, but not in the table of entries", arch.name()));
    }
    for name in module.unresolved() {
        let hint = match name.contains("panic") {
            true => {
                ": a bounds check, a division or an overflow check can panic; prove it away or use the unchecked form"
            }
            false => ": nothing defines it on the device",
        };
        findings.push(format!(".extern .func {name} cannot be loaded{hint}"));
    }
    findings
}

/// What is wrong with the text of one entry.
pub fn entry(name: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    if text.contains("__local_depot") {
        findings.push(format!(
            "{name} keeps an array in local memory (__local_depot): index it by constants only, in plain counted loops"
        ));
    }
    findings.extend(convergence::misplaced(text).into_iter().map(|instruction| {
        format!(
            "{name}: {instruction} stands where only some lanes of a warp may come: the compiler has copied or moved it"
        )
    }));
    findings
}

/// What is wrong with the machine code of one entry.
pub fn usage(name: &str, usage: &Usage) -> Vec<String> {
    let mut findings = Vec::new();
    let (stores, loads) = (usage.spill_stores, usage.spill_loads);
    if stores + loads > 0 {
        findings.push(format!("{name} spills registers: {stores} bytes of stores, {loads} bytes of loads"));
    }
    if usage.stack > 0 {
        findings.push(format!("{name} has a stack frame of {} bytes", usage.stack));
    }
    findings.extend(usage.warnings.iter().map(|warning| format!("{name}: ptxas warns: {warning}")));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str, expected: &[&str]) -> Vec<String> {
        module(&Module::parse(text), CudaArch::Sm80, expected)
    }

    const GOOD: &str = ".version 7.4\n.target sm_80\n.address_size 64\n.visible .entry a(\n)\n{ ret; }\n";

    #[test]
    fn a_good_module_has_no_findings() {
        assert_eq!(findings(GOOD, &["a"]), [""; 0]);
        assert_eq!(entry("a", GOOD), [""; 0]);
        assert_eq!(usage("a", &Usage::default()), [""; 0]);
    }

    #[test]
    fn missing_and_unknown_entries_are_refused() {
        assert_eq!(
            findings(GOOD, &["b"]),
            [
                "b is in the table of entries, but not in the PTX for sm_80",
                "a is in the PTX for sm_80, but not in the table of entries"
            ]
        );
    }

    #[test]
    fn the_wrong_target_and_version_are_refused() {
        let text = GOOD.replace("sm_80", "sm_90a").replace("7.4", "8.3");
        let found = findings(&text, &["a"]);
        assert_eq!(found[0], "the PTX is for target \"sm_90a\", not sm_80");
        assert!(found[1].starts_with("the PTX is of version \"8.3\", not 7.4"), "{}", found[1]);
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn unresolved_functions_are_refused_with_the_likely_cause() {
        let text = format!(
            "{GOOD}.extern .func _ZN4core9panicking5panic17h()\n;\n.extern .func memcpy(.param .b64 p);\n"
        );
        let found = findings(&text, &["a"]);
        assert!(
            found[0].contains("_ZN4core9panicking5panic17h") && found[0].contains("bounds check"),
            "{}",
            found[0]
        );
        assert_eq!(found[1], ".extern .func memcpy cannot be loaded: nothing defines it on the device");
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn local_memory_is_refused() {
        let found = entry("a", "{ .local .align 16 .b8 __local_depot0[64]; }");
        assert!(found[0].starts_with("a keeps an array in local memory (__local_depot)"), "{found:?}");
    }

    #[test]
    fn spills_stack_and_serialised_products_are_refused() {
        let bad = Usage {
            stack: 16,
            spill_stores: 4,
            spill_loads: 8,
            warnings: vec!["(C7510) Potential Performance Loss: wgmma serialised".into()],
            ..Usage::default()
        };
        assert_eq!(
            usage("a", &bad),
            [
                "a spills registers: 4 bytes of stores, 8 bytes of loads",
                "a has a stack frame of 16 bytes",
                "a: ptxas warns: (C7510) Potential Performance Loss: wgmma serialised"
            ]
        );
    }
}
