//! Kernels made ready for a device: once each, for as long as it is open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use spoc_driver::{Error, ErrorKind, Result};

use super::counters::{Counters, add};
use super::error::caught;
use crate::kernel::library::Origin;
use crate::kernel::write::Checks;
use crate::sync::lock;

const DOING: &str = "making a WebGPU pipeline";

/// What is asked for: a text, and what it takes.
pub(super) struct Request<'r> {
    pub(super) text: &'r str,
    pub(super) entry: &'r str,
    pub(super) checks: Checks,
    pub(super) bindings: Vec<u32>,
    pub(super) scalars_bytes: u32,
}

/// A kernel that can be launched.
pub(super) struct Pipeline {
    pub(super) raw: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
}

/// The pipelines of an opened device.
pub(super) struct Pipelines {
    known: Mutex<HashMap<Key, Arc<Pipeline>>>,
    counters: Arc<Counters>,
}

#[derive(PartialEq, Eq, Hash)]
enum Key {
    /// What it is made from, bindings, bytes of scalars.
    Kernel(Origin, Vec<u32>, u32),
    /// One of the adapter's own, by its entry.
    Own(&'static str),
}

impl Pipelines {
    pub(super) fn new(counters: &Arc<Counters>) -> Self {
        Self { known: Mutex::default(), counters: Arc::clone(counters) }
    }

    /// The pipeline of a kernel, made at the first call.
    ///
    /// # Errors
    /// `TooLarge` with the limit's name; what the API says of the text.
    pub(super) fn of_kernel(
        &self,
        device: &wgpu::Device,
        origin: Origin,
        request: &Request<'_>,
    ) -> Result<Arc<Pipeline>> {
        let key = Key::Kernel(origin, request.bindings.clone(), request.scalars_bytes);
        self.get(device, key, request)
    }

    /// One of the adapter's own: it takes so many vectors and three numbers.
    pub(super) fn own(
        &self,
        device: &wgpu::Device,
        entry: &'static str,
        vectors: u32,
    ) -> Result<Arc<Pipeline>> {
        let text = include_str!("words.wgsl");
        let bindings = (0..vectors).collect();
        let request = Request { text, entry, checks: Checks::Off, bindings, scalars_bytes: 12 };
        self.get(device, Key::Own(entry), &request)
    }

    fn get(&self, device: &wgpu::Device, key: Key, request: &Request<'_>) -> Result<Arc<Pipeline>> {
        if let Some(pipeline) = lock(&self.known).get(&key) {
            return Ok(Arc::clone(pipeline));
        }
        // Made without the lock: it takes milliseconds. Two threads may both do so.
        let made = Arc::new(Pipeline::create(device, request)?);
        add(&self.counters.pipelines, 1);
        Ok(Arc::clone(lock(&self.known).entry(key).or_insert(made)))
    }
}

impl Pipeline {
    fn create(device: &wgpu::Device, request: &Request<'_>) -> Result<Self> {
        let limits = device.limits();
        let limit = |need: u64, max: u32, limit: &'static str| match need > u64::from(max) {
            true => {
                let kind = ErrorKind::TooLarge { need, max: max.into() };
                Err(Error::new(kind, DOING).with("limit", limit))
            }
            false => Ok(()),
        };
        let buffers = limits.max_storage_buffers_per_shader_stage;
        limit(request.bindings.len() as u64, buffers, "maxStorageBuffersPerShaderStage")?;
        limit(request.scalars_bytes.into(), limits.max_immediate_size, "maxImmediateSize")?;
        let made = caught(device, DOING, 0, || {
            let module = wgpu::ShaderModuleDescriptor {
                label: Some(request.entry),
                source: wgpu::ShaderSource::Wgsl(request.text.into()),
            };
            let module = match request.checks {
                Checks::On => device.create_shader_module(module),
                // SAFETY: texts without checks are this crate's own: they stay inside what they are given, and end.
                Checks::Off => unsafe {
                    device.create_shader_module_trusted(module, wgpu::ShaderRuntimeChecks::unchecked())
                },
            };
            let entries: Vec<_> = request.bindings.iter().map(|binding| layout_entry(*binding)).collect();
            let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                label: None,
                entries: &entries,
            });
            let whole = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: None,
                bind_group_layouts: &[Some(&layout)],
                immediate_size: request.scalars_bytes,
            });
            let raw = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(request.entry),
                layout: Some(&whole),
                module: &module,
                entry_point: Some(request.entry),
                compilation_options: wgpu::PipelineCompilationOptions::default(),
                cache: None,
            });
            Self { raw, layout }
        });
        made.map_err(|error| error.with("kernel", request.entry.to_owned()))
    }

    /// Binds vectors to it.
    ///
    /// # Errors
    /// What the API says of them.
    pub(super) fn bind<'b>(
        &self,
        device: &wgpu::Device,
        vectors: impl Iterator<Item = (u32, wgpu::BufferBinding<'b>)>,
    ) -> Result<wgpu::BindGroup> {
        let entry = |(binding, vector)| wgpu::BindGroupEntry {
            binding,
            resource: wgpu::BindingResource::Buffer(vector),
        };
        let entries: Vec<_> = vectors.map(entry).collect();
        caught(device, "binding vectors to a WebGPU kernel", 0, || {
            device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &self.layout,
                entries: &entries,
            })
        })
    }
}

fn layout_entry(binding: u32) -> wgpu::BindGroupLayoutEntry {
    wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty: wgpu::BufferBindingType::Storage { read_only: false },
            has_dynamic_offset: false,
            min_binding_size: None,
        },
        count: None,
    }
}
