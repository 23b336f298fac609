//! Opened models: tensors and groups.

use crate::args::{self, sized};
use crate::entry;
use crate::failure::{Failure, Result};
use crate::handles::{self, Object};
use crate::status::spoc_status;
use ::spoc_cache::catalogue::Pattern;
use ::spoc_cache::{Catalogue, GroupRules};
use spoc_io::{Model, OpenOptions, TensorFilter};
use std::ffi::{CString, OsStr, c_char};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// An opened model: its files, tensors and groups.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_model {
    /// The handle; 0 is none.
    pub id: u64,
}

/// How a model is opened. All zeros: every tensor, grouped by the built-in rules.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_model_options {
    /// `sizeof(spoc_model_options)`.
    pub struct_size: usize,
    /// Patterns of group names that come before the built-in rules, such as `enc.*.{layer}`.
    pub group_patterns: *const *const c_char,
    /// How many.
    pub group_pattern_count: usize,
    /// Tensors that are grouped: globs of names, those with a `!` in front excluded. None: all. The others can be
    /// loaded, but have no group.
    pub grouped_tensors: *const *const c_char,
    /// How many.
    pub grouped_tensor_count: usize,
}

/// Figures of a model.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_model_info {
    /// Set by the caller: `sizeof(spoc_model_info)`.
    pub struct_size: usize,
    /// Tensors it has.
    pub tensors: u32,
    /// Groups it has.
    pub groups: u32,
    /// Files it lies in.
    pub files: u32,
    /// 0, for now.
    pub reserved: u32,
    /// Bytes of all tensors.
    pub tensor_bytes: u64,
    /// Bytes of a slot that holds its widest group.
    pub widest_group_bytes: u64,
}

/// A tensor. The texts and the shape stand until the model is closed.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_tensor {
    /// Set by the caller: `sizeof(spoc_tensor)`.
    pub struct_size: usize,
    /// Its name; a NUL in it reads as U+FFFD.
    pub name: *const c_char,
    /// Its element type in the format's terms: `BF16`, `Q4_K`, ...
    pub dtype: *const c_char,
    /// Dimensions in the order of the file: outermost first in safetensors, contiguous first in GGUF.
    pub shape: *const u64,
    /// How many dimensions; 0 for a scalar.
    pub rank: u32,
    /// Which of the model's files it lies in.
    pub file: u32,
    /// Its first byte there.
    pub file_offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// A group: tensors that move as one. The text stands until the model is closed.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_group {
    /// Set by the caller: `sizeof(spoc_group)`.
    pub struct_size: usize,
    /// The part of their names that all its tensors share.
    pub name: *const c_char,
    /// Number in its layer stack; -1 if it is of none.
    pub layer: i32,
    /// Tensors it has.
    pub tensors: u32,
    /// Bytes that it takes in a slot.
    pub slot_bytes: u64,
    /// Bytes of its tensors.
    pub tensor_bytes: u64,
}

/// A tensor's place in the slot of its group.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_member {
    /// Set by the caller: `sizeof(spoc_member)`.
    pub struct_size: usize,
    /// Its number in the model.
    pub tensor: u32,
    /// 0, for now.
    pub reserved: u32,
    /// Where it begins in the slot, a multiple of 256.
    pub offset_bytes: u64,
    /// Its length.
    pub bytes: u64,
}

sized!(spoc_model_options, spoc_model_info, spoc_tensor, spoc_group, spoc_member);

/// A model, its groups, and their names as C reads them.
pub struct ModelObject {
    pub model: Model,
    pub catalogue: Arc<Catalogue>,
    tensor_names: Vec<(CString, CString)>,
    group_names: Vec<CString>,
}

impl Object for ModelObject {
    const NAME: &'static str = "spoc_model";
}

fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

impl ModelObject {
    fn new(model: Model, rules: &GroupRules, grouped: &TensorFilter) -> Result<ModelObject> {
        let mut taken = std::collections::HashSet::new();
        for tensor in model.tensors() {
            if grouped.pick(tensor)?.is_some() {
                taken.insert(tensor.name.as_str());
            }
        }
        let catalogue = Arc::new(Catalogue::from_tensors(&model, rules, |name| taken.contains(name))?);
        let tensor_names = model
            .tensors()
            .iter()
            .map(|tensor| (c_text(&tensor.name), c_text(tensor.dtype.name())))
            .collect();
        let group_names = catalogue.groups().iter().map(|group| c_text(&group.name)).collect();
        Ok(ModelObject { model, catalogue, tensor_names, group_names })
    }

    fn tensor(&self, index: u32) -> Result<spoc_tensor> {
        let have = self.tensor_names.len();
        let none = || Failure::argument(format_args!("tensor: expected less than {have}, found {index}"));
        let tensor = self.model.tensors().get(index as usize).ok_or_else(none)?;
        let (name, dtype) = self.tensor_names.get(index as usize).ok_or_else(none)?;
        Ok(spoc_tensor {
            struct_size: size_of::<spoc_tensor>(),
            name: name.as_ptr(),
            dtype: dtype.as_ptr(),
            shape: tensor.shape.as_ptr(),
            rank: u32::try_from(tensor.shape.len()).unwrap_or(u32::MAX),
            file: tensor.extent.file,
            file_offset: tensor.extent.offset,
            bytes: tensor.extent.len_bytes,
        })
    }

    fn group(&self, index: u32) -> Result<spoc_group> {
        let (Some(group), Some(name)) = (self.catalogue.group(index), self.group_names.get(index as usize))
        else {
            return Err(spoc_cache::Error::new(spoc_cache::ErrorKind::NoSuchGroup { group: index }).into());
        };
        Ok(spoc_group {
            struct_size: size_of::<spoc_group>(),
            name: name.as_ptr(),
            layer: group.layer.and_then(|layer| i32::try_from(layer).ok()).unwrap_or(-1),
            tensors: count(self.catalogue.tensors(index).len()),
            slot_bytes: group.slot_bytes,
            tensor_bytes: group.tensor_bytes,
        })
    }
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// # Safety
/// As the header asks of an array of texts.
unsafe fn texts<'a>(array: *const *const c_char, len: usize, name: &str) -> Result<Vec<&'a str>> {
    // SAFETY: the caller's duty.
    let pointers = unsafe { args::list(array, len, name) }?;
    // SAFETY: as above.
    pointers.iter().map(|text| unsafe { args::text(*text, name) }).collect()
}

/// Opens a model: a `.safetensors` or `.gguf` file, a folder, a shard index, a Hugging Face name or snapshot. `options`
/// may be NULL. Any thread; reads headers, and no weights.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_model_open(
    path: *const c_char,
    options: *const spoc_model_options,
    model: Option<&mut MaybeUninit<spoc_model>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(model, "model")?;
        // SAFETY: as the header asks.
        let path = unsafe { args::bytes(path) };
        let path = path.ok_or_else(|| Failure::argument("path: expected a pointer, found NULL"))?;
        // SAFETY: as the header asks.
        let options = unsafe { args::options(options) }?;
        // SAFETY: as the header asks.
        let patterns =
            unsafe { texts(options.group_patterns, options.group_pattern_count, "group_patterns") }?;
        // SAFETY: as the header asks.
        let grouped =
            unsafe { texts(options.grouped_tensors, options.grouped_tensor_count, "grouped_tensors") }?;
        let patterns = patterns.iter().map(|text| text.parse::<Pattern>()).collect::<Result<Vec<_>, _>>();
        let rules = GroupRules::with_patterns(patterns.map_err(spoc_cache::Error::from)?);
        let filter = TensorFilter::new(&grouped)?;
        let opened = spoc_io::open_model(Path::new(OsStr::from_bytes(path)), &OpenOptions::default())?;
        out.write(spoc_model { id: handles::put(ModelObject::new(opened, &rules, &filter)?)? });
        Ok(())
    })
}

/// Figures of a model. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_model_describe(model: spoc_model, info: *mut spoc_model_info) -> spoc_status {
    entry::run(|| {
        let object = handles::get::<ModelObject>(model.id)?;
        let described = spoc_model_info {
            struct_size: size_of::<spoc_model_info>(),
            tensors: count(object.model.tensors().len()),
            groups: count(object.catalogue.groups().len()),
            files: count(object.model.files().len()),
            reserved: 0,
            tensor_bytes: object.model.tensor_bytes(),
            widest_group_bytes: object.catalogue.widest_slot_bytes(),
        };
        // SAFETY: as the header asks.
        unsafe { args::fill(info, &described) }
    })
}

/// A tensor by its number, which counts in the order of file and offset. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_model_tensor(
    model: spoc_model,
    number: u32,
    tensor: *mut spoc_tensor,
) -> spoc_status {
    entry::run(|| {
        let described = handles::get::<ModelObject>(model.id)?.tensor(number)?;
        // SAFETY: as the header asks.
        unsafe { args::fill(tensor, &described) }
    })
}

/// The number of the tensor with this name. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_model_find_tensor(
    model: spoc_model,
    name: *const c_char,
    number: Option<&mut MaybeUninit<u32>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(number, "number")?;
        let object = handles::get::<ModelObject>(model.id)?;
        // SAFETY: as the header asks.
        let name = unsafe { args::text(name, "name") }?;
        let found = object.model.tensors().iter().position(|tensor| tensor.name == name);
        let none = || Failure::new(spoc_status::SPOC_ERROR_NO_TENSOR, format_args!("no tensor {name:?}"));
        out.write(count(found.ok_or_else(none)?));
        Ok(())
    })
}

/// A group by its number, which counts in the order in which the model is visited. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_model_group(
    model: spoc_model,
    number: u32,
    group: *mut spoc_group,
) -> spoc_status {
    entry::run(|| {
        let described = handles::get::<ModelObject>(model.id)?.group(number)?;
        // SAFETY: as the header asks.
        unsafe { args::fill(group, &described) }
    })
}

/// The number of the group with this name. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_model_find_group(
    model: spoc_model,
    name: *const c_char,
    number: Option<&mut MaybeUninit<u32>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(number, "number")?;
        let object = handles::get::<ModelObject>(model.id)?;
        // SAFETY: as the header asks.
        let name = unsafe { args::text(name, "name") }?;
        let none = || Failure::new(spoc_status::SPOC_ERROR_NO_SUCH_GROUP, format_args!("no group {name:?}"));
        out.write(object.catalogue.group_named(name).ok_or_else(none)?);
        Ok(())
    })
}

/// The `position`-th tensor of a group, in the order in which they lie in its slot. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_model_member(
    model: spoc_model,
    group: u32,
    position: u32,
    member: *mut spoc_member,
) -> spoc_status {
    entry::run(|| {
        let object = handles::get::<ModelObject>(model.id)?;
        object.group(group)?;
        let members = object.catalogue.tensors(group);
        let have = members.len();
        let none =
            || Failure::argument(format_args!("position: expected less than {have}, found {position}"));
        let found = members.get(position as usize).ok_or_else(none)?;
        let described = spoc_member {
            struct_size: size_of::<spoc_member>(),
            tensor: found.tensor,
            reserved: 0,
            offset_bytes: found.offset_bytes,
            bytes: found.extent.len_bytes,
        };
        // SAFETY: as the header asks.
        unsafe { args::fill(member, &described) }
    })
}

/// Closes the handle, and with it the texts and shapes that were taken from it. Caches that registered the model keep
/// what they need. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_model_close(model: spoc_model) -> spoc_status {
    entry::run(|| handles::take::<ModelObject>(model.id).map(drop))
}
