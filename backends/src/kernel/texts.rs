//! Kernels as texts that naga writes: WGSL for WebGPU, MSL for Metal.

use naga::AddressSpace;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};

#[cfg(any(test, feature = "doubles", target_vendor = "apple"))]
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};

use super::Refusal;
use super::ir::Site;
use super::parse::{Parsed, in_one_line};
#[cfg(any(test, feature = "doubles", target_vendor = "apple"))]
use super::write::Checks;

/// The text's module with the one entry, called [`ENTRY`].
fn with_one_entry(parsed: &Parsed, entry: &str) -> naga::Module {
    let mut module = parsed.module.clone();
    module.entry_points.retain(|known| known.name == entry);
    module.entry_points.iter_mut().for_each(|known| ENTRY.clone_into(&mut known.name));
    module
}

/// Checks it for a dialect; what that lacks is refused by name and place.
fn checked(
    parsed: &Parsed,
    module: &naga::Module,
    dialect: &str,
    capabilities: Capabilities,
) -> Result<ModuleInfo, Refusal> {
    Validator::new(ValidationFlags::all(), capabilities).validate(module).map_err(|error| {
        let place = error.spans().next().map_or_else(Site::default, |(span, _)| parsed.site(*span));
        Refusal { site: place, ..refused(dialect, &in_one_line(error.as_inner())) }
    })
}

fn refused(dialect: &str, error: &dyn std::fmt::Display) -> Refusal {
    let what = format!("{dialect}: {error}").split_whitespace().collect::<Vec<_>>().join(" ");
    Refusal { what, site: Site::default(), is_malformed: false }
}

/// What the one function of a text that naga writes is called: its own name may not survive being written.
pub(crate) const ENTRY: &str = "spoc";

/// Buffers that a function can be given in MSL.
#[cfg(any(test, feature = "doubles", target_vendor = "apple"))]
const PLACES: u32 = 31;

/// A kernel in MSL. Vectors have the places of their bindings.
#[cfg(any(test, feature = "doubles", target_vendor = "apple"))]
#[derive(Debug, Clone)]
pub(crate) struct Msl {
    pub(crate) text: String,
    /// Its function.
    pub(crate) function: String,
    /// Where the numbers go.
    pub(crate) scalars_place: u32,
    /// Where the lengths in bytes of vectors go, and the bindings of these vectors in that order.
    pub(crate) sizes_place: u32,
    pub(crate) sized_bindings: Vec<u32>,
}

/// Where 64-bit floats first appear: naga's writer has nothing for them, and checks name no place for all uses.
#[cfg(any(test, feature = "doubles", target_vendor = "apple"))]
fn first_double(module: &naga::Module) -> Option<naga::Span> {
    use naga::{Expression, Literal, Scalar, ScalarKind, TypeInner};
    let is_double = |ty: naga::Handle<naga::Type>| {
        let inner = &module.types[ty].inner;
        let element = match inner {
            TypeInner::Array { base, .. } => &module.types[*base].inner,
            inner => inner,
        };
        element.scalar() == Some(Scalar::F64)
    };
    let mut globals = module.global_variables.iter();
    if let Some((handle, _)) = globals.find(|(_, variable)| is_double(variable.ty)) {
        return Some(module.global_variables.get_span(handle));
    }
    let entries = module.entry_points.iter().map(|entry| &entry.function);
    entries.chain(module.functions.iter().map(|(_, function)| function)).find_map(|function| {
        let mut expressions = function.expressions.iter();
        let (handle, _) = expressions.find(|(_, expression)| match expression {
            Expression::As { kind: ScalarKind::Float, convert: Some(8), .. } => true,
            Expression::Literal(Literal::F64(_)) => true,
            Expression::Compose { ty, .. } | Expression::ZeroValue(ty) => is_double(*ty),
            _ => false,
        })?;
        Some(function.expressions.get_span(handle))
    })
}

/// MSL 2.4, which macOS 12 compiles.
///
/// # Errors
/// What MSL has not (64-bit floats), by name and place; what naga says that it cannot write.
#[cfg(any(test, feature = "doubles", target_vendor = "apple"))]
pub(crate) fn msl(parsed: &Parsed, entry: &str, checks: Checks) -> Result<Msl, Refusal> {
    use naga::back::msl as back;
    const NAME: &str = "MSL";
    let module = with_one_entry(parsed, entry);
    // Its writer panics at what these leave out.
    if let Some(span) = first_double(&module) {
        return Err(Refusal { site: parsed.site(span), ..refused(NAME, &"no 64-bit floats (f64)") });
    }
    let info = checked(parsed, &module, NAME, back::supported_capabilities())?;
    let storage = module
        .global_variables
        .iter()
        .filter(|(_, variable)| matches!(variable.space, AddressSpace::Storage { .. }));
    let (mut resources, mut sized_bindings) = (back::EntryPointResources::default(), Vec::new());
    let mut first_free = 0;
    for (handle, variable) in storage {
        let Some(binding) = variable.binding else { continue };
        first_free = first_free.max(binding.binding + 1);
        let place = u8::try_from(binding.binding).unwrap_or(u8::MAX);
        let target = back::BindTarget { buffer: Some(place), mutable: true, ..Default::default() };
        resources.resources.insert(binding, target);
        if module.types[variable.ty].inner.is_dynamically_sized(&module.types) {
            sized_bindings.push(binding.binding);
        }
        if first_free + 2 > PLACES {
            let site = parsed.site(module.global_variables.get_span(handle));
            let what = format!("binding {}: a function takes {PLACES} buffers", binding.binding);
            return Err(Refusal { site, ..refused(NAME, &what) });
        }
    }
    let (scalars_place, sizes_place) = (first_free, first_free + 1);
    resources.immediates_buffer = u8::try_from(scalars_place).ok();
    resources.sizes_buffer = u8::try_from(sizes_place).ok();
    let policy = match checks {
        Checks::On => BoundsCheckPolicy::Restrict,
        Checks::Off => BoundsCheckPolicy::Unchecked,
    };
    let options = back::Options {
        lang_version: (2, 4),
        per_entry_point_map: [(ENTRY.to_owned(), resources)].into(),
        bounds_check_policies: BoundsCheckPolicies { index: policy, buffer: policy, ..Default::default() },
        zero_initialize_workgroup_memory: true,
        // Not a bound on loops: they are the kernel's own to end.
        force_loop_bounding: false,
        ..Default::default()
    };
    let pipeline = back::PipelineOptions {
        entry_point: Some((naga::ShaderStage::Compute, ENTRY.to_owned())),
        ..Default::default()
    };
    // Checked as it is, it should not panic any more; a kernel is no reason to end a process if it does.
    let write = || back::write_string(&module, &info, &options, &pipeline);
    let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(write));
    let (text, translated) = match written {
        Ok(written) => written.map_err(|error| refused(NAME, &error))?,
        Err(_) => return Err(refused(NAME, &"naga's writer gave up on it")),
    };
    let function = match translated.entry_point_names.into_iter().next() {
        Some(Ok(name)) => name,
        Some(Err(error)) => return Err(refused(NAME, &error)),
        None => return Err(refused(NAME, &"no function was written")),
    };
    Ok(Msl { text, function, scalars_place, sizes_place, sized_bindings })
}

/// WGSL with one entry, [`ENTRY`], in which every vector could be written: WebGPU lets no buffer be bound for reading
/// and for writing at once, and vectors share buffers.
///
/// # Errors
/// What naga says that it cannot write.
#[cfg(feature = "webgpu")]
pub(crate) fn wgsl(parsed: &Parsed, entry: &str) -> Result<String, Refusal> {
    use naga::StorageAccess;
    use naga::back::wgsl as back;
    let mut module = with_one_entry(parsed, entry);
    let mut writable = Vec::new();
    for (handle, variable) in module.global_variables.iter() {
        if matches!(variable.space, AddressSpace::Storage { .. }) {
            writable.push(handle);
        }
    }
    for handle in writable {
        let variable = module.global_variables.get_mut(handle);
        if let AddressSpace::Storage { access } = &mut variable.space {
            *access |= StorageAccess::LOAD | StorageAccess::STORE;
        }
    }
    let info = checked(parsed, &module, "WGSL", Capabilities::all())?;
    back::write_string(&module, &info, back::WriterFlags::empty()).map_err(|error| refused("WGSL", &error))
}

#[cfg(test)]
mod tests {
    use super::super::built_ins::Variant;
    use super::super::library::Module;
    use super::super::write::Checks;
    use super::{Parsed, msl};

    #[cfg(feature = "webgpu")]
    #[test]
    fn every_built_in_survives_being_written() {
        let mut count = 0;
        for variant in Variant::all() {
            let module = Module::new(&variant.text(), &variant.entry()).unwrap();
            let text = module.wgsl().unwrap_or_else(|refusal| panic!("{variant:?}: {refusal}"));
            let again = Parsed::new(text).unwrap_or_else(|refusal| panic!("{variant:?}: {refusal}\n{text}"));
            assert_eq!(again.module.entry_points.len(), 1);
            assert_eq!(again.module.entry_points[0].name, super::ENTRY, "{text}");
            assert!(!text.contains("storage, read>") && !text.contains("var<storage>"), "{text}");
            count += 1;
        }
        assert!(count > 80, "{count}");
    }

    #[test]
    fn every_built_in_becomes_msl_but_those_of_64_bit_floats() {
        let (mut written, mut refused) = (0, 0);
        for variant in Variant::all() {
            let module = Module::new(&variant.text(), &variant.entry()).unwrap();
            let is_double = variant.text().contains("<f64>");
            match module.msl() {
                Ok(msl) => {
                    assert!(!is_double, "{variant:?}");
                    assert!(msl.text.contains(&format!("kernel void {}(", msl.function)), "{}", msl.text);
                    assert!(msl.text.contains(&format!("[[buffer({})]]", msl.scalars_place)), "{}", msl.text);
                    assert!(!msl.text.contains("double"), "{}", msl.text);
                    written += 1;
                }
                Err(refusal) => {
                    assert!(is_double, "{variant:?}: {refusal}");
                    assert!(refusal.site.line > 0, "{refusal}");
                    refused += 1;
                }
            }
        }
        assert!(written > 75 && refused == 2, "{written} written, {refused} refused");
    }

    fn refusal(text: &str) -> String {
        msl(&Parsed::new(text).unwrap(), "f", Checks::On).unwrap_err().to_string()
    }

    #[test]
    fn what_msl_has_not_is_refused_by_name_and_place() {
        let text = "@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@compute @workgroup_size(1) fn f() {
    x[0] = f32(f64(x[1]) * 2.0lf);
}";
        let refused = refusal(text);
        assert!(refused.contains("f64") && refused.starts_with("line 3, "), "{refused}");
        let far = "@group(0) @binding(30) var<storage, read_write> x: array<f32>;
@compute @workgroup_size(1) fn f() { x[0] = 1.0; }";
        let refused = refusal(far);
        assert!(refused.contains("binding 30") && refused.contains("line 1"), "{refused}");
    }

    #[test]
    fn numbers_and_lengths_have_places_behind_the_vectors() {
        let text = "struct N { n: u32, s: f32 }
var<immediate> n: N;
@group(0) @binding(3) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> b: array<f32>;
@compute @workgroup_size(64) fn f(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < min(arrayLength(&b), n.n) { b[id.x] = a[id.x] * n.s; }
}";
        let msl = msl(&Parsed::new(text).unwrap(), "f", Checks::On).unwrap();
        assert_eq!((msl.scalars_place, msl.sizes_place), (4, 5));
        // In the order of the text, as the lengths are.
        assert_eq!(msl.sized_bindings, [3, 1]);
        for place in [1, 3, 4, 5] {
            assert!(msl.text.contains(&format!("[[buffer({place})]]")), "{}", msl.text);
        }
    }
}
