//! The transfer contract on every backend.

use spoc_tests::{Platform, conformance};

conformance!(native, Platform::native());
conformance!(interpreter, Platform::interpreter());
conformance!(fake, Platform::fake());
conformance!(opencl, Platform::opencl());
conformance!(vulkan, Platform::vulkan());
conformance!(cuda, Platform::cuda());
