//! Kernels made ready for a device: once each, for as long as it is open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use spoc_driver::Result;

use super::api::{Api, Code};
use crate::kernel::library::{Module, Origin};
use crate::kernel::texts::Msl;
use crate::sync::lock;

/// The pipelines of an opened device.
pub(super) struct Pipelines<A: Api>(Mutex<HashMap<Origin, Arc<A::Pipeline>>>);

impl<A: Api> Default for Pipelines<A> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<A: Api> Pipelines<A> {
    /// The pipeline of a kernel, made at the first call.
    ///
    /// # Errors
    /// What the API's compiler says.
    pub(super) fn get(
        &self,
        api: &A,
        device: &A::Device,
        module: &Arc<Module>,
        msl: &Msl,
    ) -> Result<Arc<A::Pipeline>> {
        let key = Origin::Wgsl(Arc::clone(module));
        if let Some(pipeline) = lock(&self.0).get(&key) {
            return Ok(Arc::clone(pipeline));
        }
        let code = Code { text: &msl.text, function: &msl.function, module };
        // Made without the lock: it takes milliseconds. Two threads may both do so.
        let made = Arc::new(api.pipeline(device, &code)?);
        Ok(Arc::clone(lock(&self.0).entry(key).or_insert(made)))
    }
}
