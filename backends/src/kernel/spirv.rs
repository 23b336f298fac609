//! WGSL as SPIR-V, by naga's own writer.

use naga::back::spv;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};

use super::Refusal;
use super::ir::Site;
use super::parse::Parsed;
use super::write::Checks;

/// Words of SPIR-V 1.3, which every device with Vulkan 1.1 takes.
///
/// # Errors
/// What naga says that it cannot write.
pub(crate) fn words(parsed: &Parsed, entry: &str, checks: Checks) -> Result<Vec<u32>, Refusal> {
    // What lies outside becomes the last that is inside: the one way that naga has for atomics as well.
    let policy = match checks {
        Checks::On => BoundsCheckPolicy::Restrict,
        Checks::Off => BoundsCheckPolicy::Unchecked,
    };
    let options = spv::Options {
        lang_version: (1, 3),
        flags: spv::WriterFlags::empty(),
        bounds_check_policies: BoundsCheckPolicies { index: policy, buffer: policy, ..Default::default() },
        // Not a bound on loops: they are the kernel's own to end.
        force_loop_bounding: false,
        // The text's own groups and bindings.
        fake_missing_bindings: true,
        use_storage_input_output_16: false,
        ..Default::default()
    };
    let pipeline =
        spv::PipelineOptions { shader_stage: naga::ShaderStage::Compute, entry_point: entry.to_owned() };
    spv::write_vec(&parsed.module, &parsed.info, &options, Some(&pipeline)).map_err(|error| Refusal {
        what: format!("SPIR-V: {error}"),
        site: Site::default(),
        is_malformed: false,
    })
}

#[cfg(test)]
mod tests {
    use spoc_driver::{BuiltIn, ElementKind};

    use super::super::built_ins::Variant;
    use super::super::library::Module;

    const MAGIC: u32 = 0x0723_0203;

    #[test]
    fn built_ins_become_spirv() {
        let kinds = [ElementKind::U8, ElementKind::F16, ElementKind::F32, ElementKind::F64];
        for kind in kinds {
            let variant = Variant { which: BuiltIn::Scale, from: kind, to: kind };
            let module = Module::new(&variant.text(), &variant.entry()).unwrap();
            assert_eq!(module.spirv().unwrap()[0], MAGIC);
        }
    }
}
