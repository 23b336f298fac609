//! The loader, the instance and the validation layer.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ash::{ext, vk};

use super::counters::Counters;
use super::error::name_of;
use super::identity::Physical;
use crate::probe;

const LIBRARIES: [&str; 2] = ["libvulkan.so.1", "libvulkan.so"];
const VALIDATION_LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

/// A Vulkan instance; its devices hold it.
pub(super) struct Instance {
    pub(super) raw: ash::Instance,
    messenger: Option<(ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    /// The messenger counts here until it is destroyed.
    _counters: Arc<Counters>,
    /// The library, loaded for as long as anything of it is used.
    _entry: ash::Entry,
}

impl Instance {
    /// Loads the library and makes an instance.
    ///
    /// # Errors
    /// Why it is not usable.
    pub(super) fn create(validation: bool, counters: &Arc<Counters>) -> Result<Arc<Self>, String> {
        // It stays loaded.
        probe::load(&LIBRARIES).map_err(|errors| format!("no Vulkan library: {errors}"))?;
        // SAFETY: loading runs the initialisers of the system's Vulkan loader; the line above has just done so.
        let entry = unsafe { ash::Entry::load() }.map_err(|error| format!("no Vulkan library: {error}"))?;
        if validation {
            require_layer(&entry)?;
        }
        let raw = create_raw(&entry, validation)?;
        let mut instance = Self { raw, messenger: None, _counters: Arc::clone(counters), _entry: entry };
        if validation {
            instance.messenger = Some(instance.listen()?);
        }
        Ok(Arc::new(instance))
    }

    /// The devices that serve, or why none does.
    pub(super) fn devices(&self) -> Result<Vec<Physical>, String> {
        // SAFETY: the instance is live.
        let found = unsafe { self.raw.enumerate_physical_devices() }
            .map_err(|result| format!("Vulkan lists no devices: {}", name_of(result)))?;
        let (mut devices, mut refused) = (Vec::new(), Vec::new());
        for raw in found {
            let index = u32::try_from(devices.len()).unwrap_or(u32::MAX);
            match Physical::describe(&self.raw, raw, index) {
                Ok(physical) => devices.push(physical),
                Err(reason) => {
                    tracing::info!(reason, "a Vulkan device does not serve");
                    refused.push(reason);
                }
            }
        }
        match (devices.is_empty(), refused.is_empty()) {
            (false, _) => Ok(devices),
            (true, true) => Err("the Vulkan library is there, but no driver of it has a device".to_owned()),
            (true, false) => Err(format!("no Vulkan device serves: {}", refused.join("; "))),
        }
    }

    fn listen(&self) -> Result<(ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT), String> {
        let functions = ext::debug_utils::Instance::new(&self._entry, &self.raw);
        let info = vk::DebugUtilsMessengerCreateInfoEXT::default()
            .message_severity(
                vk::DebugUtilsMessageSeverityFlagsEXT::WARNING | vk::DebugUtilsMessageSeverityFlagsEXT::ERROR,
            )
            .message_type(
                vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION
                    | vk::DebugUtilsMessageTypeFlagsEXT::PERFORMANCE,
            )
            .pfn_user_callback(Some(on_message))
            .user_data(Arc::as_ptr(&self._counters).cast_mut().cast());
        // SAFETY: the instance is live; `_counters` outlives the messenger, which `drop` destroys first.
        let made = unsafe { functions.create_debug_utils_messenger(&info, None) };
        made.map(|messenger| (functions, messenger))
            .map_err(|result| format!("no messages from the validation layer: {}", name_of(result)))
    }
}

fn require_layer(entry: &ash::Entry) -> Result<(), String> {
    // SAFETY: asks the loader for a list; no preconditions.
    let layers = unsafe { entry.enumerate_instance_layer_properties() }.unwrap_or_default();
    if layers.iter().any(|layer| layer.layer_name_as_c_str() == Ok(VALIDATION_LAYER)) {
        return Ok(());
    }
    Err(format!(
        "{}=1, but the validation layer is not installed (Debian: vulkan-validationlayers)",
        super::VALIDATION_VARIABLE
    ))
}

fn create_raw(entry: &ash::Entry, validation: bool) -> Result<ash::Instance, String> {
    // SAFETY: no preconditions.
    let version = unsafe { entry.try_enumerate_instance_version() };
    if version.ok().flatten().is_none_or(|version| version < vk::API_VERSION_1_1) {
        return Err("the Vulkan loader knows version 1.0 only; 1.2 is needed".to_owned());
    }
    let application = vk::ApplicationInfo::default()
        .application_name(c"spoc")
        .engine_name(c"spoc")
        .api_version(vk::API_VERSION_1_3);
    let layers: &[*const c_char] = if validation { &[VALIDATION_LAYER.as_ptr()] } else { &[] };
    let extensions: &[*const c_char] = if validation {
        &[ext::debug_utils::NAME.as_ptr(), ext::validation_features::NAME.as_ptr()]
    } else {
        &[]
    };
    let checks = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
    let mut features = vk::ValidationFeaturesEXT::default().enabled_validation_features(&checks);
    let mut info = vk::InstanceCreateInfo::default()
        .application_info(&application)
        .enabled_layer_names(layers)
        .enabled_extension_names(extensions);
    if validation {
        info = info.push_next(&mut features);
    }
    // SAFETY: all that `info` points to lives until the call returns.
    unsafe { entry.create_instance(&info, None) }.map_err(|result| match result {
        vk::Result::ERROR_INCOMPATIBLE_DRIVER => {
            "the Vulkan library is there, but no driver of it (VK_ERROR_INCOMPATIBLE_DRIVER)".to_owned()
        }
        other => format!("no Vulkan instance: {}", name_of(other)),
    })
}

/// Counts and logs what the validation layer says.
unsafe extern "system" fn on_message(
    severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    user: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: `listen` gave this pointer, and keeps what it points to alive while the messenger lives.
    if let Some(counters) = unsafe { user.cast::<Counters>().as_ref() } {
        counters.validation_messages.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the layer passes valid data, or null.
    let data = unsafe { data.as_ref() };
    // SAFETY: the message is a string that lives for the duration of the callback, or null.
    let text = data.and_then(|data| unsafe { data.message_as_c_str() });
    let text = text.unwrap_or_default().to_string_lossy();
    if severity.contains(vk::DebugUtilsMessageSeverityFlagsEXT::ERROR) {
        tracing::error!(%text, "Vulkan validation");
    } else {
        tracing::warn!(%text, "Vulkan validation");
    }
    vk::FALSE
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some((functions, messenger)) = self.messenger.take() {
            // SAFETY: made by `listen` from this instance, and destroyed once.
            unsafe { functions.destroy_debug_utils_messenger(messenger, None) };
        }
        // SAFETY: every device holds the instance, so none is left.
        unsafe { self.raw.destroy_instance(None) };
    }
}
