//! The transfer contract on every backend.

use spoc_tests::{Platform, conformance};

conformance!(native, Platform::native());
conformance!(interpreter, Platform::interpreter());
conformance!(fake, Platform::fake());
conformance!(opencl, Platform::opencl());
conformance!(vulkan, Platform::vulkan());
conformance!(cuda, Platform::cuda());
conformance!(webgpu, Platform::webgpu());
conformance!(metal_double, Platform::metal_double());

/// A backend that is stamped here and left out there would have no record of any run.
#[test]
fn every_backend_stamped_here_can_be_recorded() {
    let stamped =
        include_str!("conformance.rs").lines().filter_map(|line| line.strip_prefix("conformance!("));
    let stamped: Vec<_> = stamped.filter_map(|line| line.split(',').next()).collect();
    let recorded: Vec<_> = Platform::all().iter().map(|platform| platform.kind.as_str()).collect();
    // Doubles are no devices.
    let doubles = ["fake", "metal_double"];
    let mut missing = stamped.iter().filter(|name| !doubles.contains(name) && !recorded.contains(name));
    assert_eq!(missing.next(), None, "left out of Platform::all()");
}
