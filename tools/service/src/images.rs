//! Whole models, and layouts that clients made, in device memory of their own.

use crate::access::check_name;
use crate::error::{Error, Result};
use crate::host::HostDevice;
use crate::models::Registered;
use crate::park::Parking;
use crate::record;
use crate::segments::{Numbered, SegmentBook};
use spoc_cache::load::{Cancel, LoadOptions, LoadReport, load_model};
use spoc_driver::SegmentOptions;
use spoc_io::Manifest;
use spoc_proto::v1 as pb;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// What an image is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its maker fills it; nobody else may read it.
    Writing,
    /// It stays as it is.
    Sealed,
}

/// Device memory with tensors in it.
#[derive(Debug)]
pub struct Image {
    pub name: String,
    pub device: String,
    /// The model that it was loaded from; empty for one that a client wrote.
    pub model: String,
    pub bytes: u64,
    pub segments: Vec<Numbered>,
    pub tensors: Vec<pb::Placement>,
    pub lineage: HashMap<String, String>,
    /// Session that makes it, as long as it is being written.
    maker: u64,
    /// Compared with its manifest as it was loaded.
    pub was_verified: bool,
    is_sealed: AtomicBool,
    pinned: AtomicBool,
    leases: AtomicU32,
}

impl Image {
    pub fn stage(&self) -> Stage {
        if self.is_sealed.load(Ordering::Acquire) { Stage::Sealed } else { Stage::Writing }
    }

    pub fn set_pinned(&self, pinned: bool) {
        self.pinned.store(pinned, Ordering::Relaxed);
    }

    /// As clients are told of it.
    pub fn told(&self) -> pb::Image {
        let state = match self.stage() {
            Stage::Writing => "writing",
            Stage::Sealed => "sealed",
        };
        pb::Image {
            name: self.name.clone(),
            device: self.device.clone(),
            state: state.to_owned(),
            bytes: self.bytes,
            leases: self.leases.load(Ordering::Relaxed),
            model: self.model.clone(),
            lineage: self.lineage.clone(),
            segment_bytes: self.segments.iter().map(|segment| segment.segment.len_bytes()).collect(),
            pinned: self.pinned.load(Ordering::Relaxed),
        }
    }

    /// Its segments cannot be asked for any more; their memory is free when whoever has them lets go.
    pub fn forget(&self, book: &SegmentBook) {
        self.segments.iter().for_each(|segment| book.remove(segment.id));
    }

    /// Its segments, as a lease names them.
    pub fn told_segments(&self) -> Vec<pb::Segment> {
        (0u32..).zip(&self.segments).map(|(index, segment)| segment.told(index)).collect()
    }
}

/// Keeps an image from being evicted until it is dropped.
#[derive(Debug)]
pub struct ImageHold {
    image: Arc<Image>,
    is_counted: bool,
}

impl ImageHold {
    fn new(image: &Arc<Image>) -> ImageHold {
        image.leases.fetch_add(1, Ordering::AcqRel);
        ImageHold { image: Arc::clone(image), is_counted: true }
    }

    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// Keeps it no longer. Its memory goes with this value at the earliest, which may block.
    pub fn let_go(&mut self) {
        if std::mem::take(&mut self.is_counted) {
            self.image.leases.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for ImageHold {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// How far a load is, and how it ended.
#[derive(Clone, Debug, Default)]
pub struct LoadState {
    pub done_bytes: u64,
    pub total_bytes: u64,
    pub outcome: Option<Result<pb::LoadDone>>,
}

/// A load that runs.
#[derive(Debug)]
struct Running {
    /// Tells it from one of the same name that comes after it was given up.
    number: u64,
    model: Arc<str>,
    verify: bool,
    state: watch::Receiver<LoadState>,
}

#[derive(Debug, Default)]
struct Book {
    images: BTreeMap<String, Arc<Image>>,
    loads: HashMap<String, Running>,
    next_load: u64,
}

/// Every image, and those that are being loaded.
#[derive(Debug, Default)]
pub struct ImageBook {
    book: Mutex<Book>,
    parking: Arc<Parking>,
}

/// What of a model to load, where.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Of the image. No client can give one of its own such a name.
    pub name: String,
    pub model: Arc<str>,
    pub verify: bool,
    pub tensors: Option<String>,
}

impl Wanted {
    /// `device` is what tells the device from the others.
    pub fn new(model: &Registered, device: &str, request: &pb::LoadRequest) -> Wanted {
        let tensors = Some(request.tensors.clone()).filter(|glob| !glob.is_empty());
        let part = tensors.as_ref().map_or_else(String::new, |glob| format!("#{glob}"));
        Wanted {
            name: format!("{}@{device}{part}", model.name),
            model: Arc::clone(&model.name),
            verify: request.verify,
            tensors,
        }
    }
}

impl ImageBook {
    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sealed images are parked here.
    pub fn new(parking: Arc<Parking>) -> ImageBook {
        ImageBook { book: Mutex::default(), parking }
    }

    /// An image that an earlier process of this service had.
    pub fn adopt(&self, record: record::Image, segments: Vec<Numbered>) -> Arc<Image> {
        let image = Arc::new(Image {
            name: record.name,
            device: record.device,
            model: record.model,
            bytes: record.bytes,
            segments,
            tensors: record.tensors,
            lineage: record.lineage,
            maker: 0,
            was_verified: record.was_verified,
            is_sealed: AtomicBool::new(true),
            pinned: AtomicBool::new(record.pinned),
            leases: AtomicU32::new(0),
        });
        self.lock().images.insert(image.name.clone(), Arc::clone(&image));
        image
    }

    /// Holds the image whose first segment this is.
    pub fn hold_by_segment(&self, id: u64) -> Option<ImageHold> {
        let book = self.lock();
        let is_it = |image: &&Arc<Image>| image.segments.first().is_some_and(|first| first.id == id);
        book.images.values().find(is_it).map(ImageHold::new)
    }

    pub fn all(&self) -> Vec<Arc<Image>> {
        self.lock().images.values().cloned().collect()
    }

    /// Names of what is being loaded.
    pub fn loading(&self) -> Vec<(String, LoadState)> {
        self.lock().loads.iter().map(|(name, load)| (name.clone(), load.state.borrow().clone())).collect()
    }

    /// Holds an image.
    ///
    /// # Errors
    /// `not_resident`; `wrong_state` while another session writes it.
    pub fn hold(&self, name: &str, session: u64) -> Result<ImageHold> {
        let book = self.lock();
        let Some(image) = book.images.get(name) else {
            let kind = if book.loads.contains_key(name) { "is being loaded" } else { "is not resident" };
            let there: Vec<&str> = book.images.keys().take(8).map(String::as_str).collect();
            return Err(Error::new("not_resident", format!("image {name:?} {kind}; there are {there:?}")));
        };
        if image.stage() == Stage::Writing && image.maker != session {
            return Err(Error::new("wrong_state", format!("image {name:?} is still being written")));
        }
        Ok(ImageHold::new(image))
    }

    pub fn get(&self, name: &str) -> Result<Arc<Image>> {
        let book = self.lock();
        let unknown = || Error::new("unknown_image", format!("there is no image {name:?}"));
        book.images.get(name).cloned().ok_or_else(unknown)
    }

    /// Begins a load with a number, or joins the one that runs. `None` if the image is there.
    ///
    /// # Errors
    /// `wrong_state` if its bytes are to be compared with the manifest, and what is there or under way is not.
    pub fn join(
        &self,
        wanted: &Wanted,
        start: impl FnOnce(u64) -> watch::Receiver<LoadState>,
    ) -> Result<Option<watch::Receiver<LoadState>>> {
        let name = &wanted.name;
        let mut book = self.lock();
        let unverified = |what: &str| {
            let message =
                format!("image {name:?} {what} without being compared with its manifest: evict it first");
            Err(Error::new("wrong_state", message))
        };
        if let Some(image) = book.images.get(name) {
            return if wanted.verify && !image.was_verified { unverified("was loaded") } else { Ok(None) };
        }
        if let Some(running) = book.loads.get(name).filter(|load| load.state.has_changed().is_ok()) {
            if wanted.verify && !running.verify {
                return unverified("is being loaded");
            }
            return Ok(Some(running.state.clone()));
        }
        book.next_load += 1;
        let number = book.next_load;
        let state = start(number);
        let running =
            Running { number, model: Arc::clone(&wanted.model), verify: wanted.verify, state: state.clone() };
        book.loads.insert(name.clone(), running);
        Ok(Some(state))
    }

    /// Forgets a load if nobody waits for it but the book itself, so that nobody joins one that is being given up.
    pub fn give_up(&self, name: &str, number: u64, told: &watch::Sender<LoadState>) -> bool {
        let mut book = self.lock();
        let is_it = book.loads.get(name).is_some_and(|load| load.number == number);
        let is_alone = is_it && told.receiver_count() <= 1;
        if is_alone {
            book.loads.remove(name);
        }
        is_alone
    }

    /// The load has ended; its image, if there is one, is there from now on. `false` for one that was given up.
    pub fn loaded(&self, name: &str, number: u64, image: Option<&Arc<Image>>) -> bool {
        let mut book = self.lock();
        if book.loads.get(name).is_none_or(|load| load.number != number) {
            return false;
        }
        book.loads.remove(name);
        if let Some(image) = image {
            self.parking.image(image);
            book.images.insert(name.to_owned(), Arc::clone(image));
        }
        true
    }

    /// Whether some of this model is being loaded.
    pub fn is_loading(&self, model: &str) -> bool {
        self.lock().loads.values().any(|load| *load.model == *model)
    }

    /// Makes an image for a client to write.
    ///
    /// # Errors
    /// `already_registered`; `usage` for a name that is none, tensors beyond their segments; the device's.
    pub fn create(
        &self,
        request: pb::CreateImageRequest,
        host: &HostDevice,
        maker: u64,
        book: &SegmentBook,
    ) -> Result<ImageHold> {
        // Loaded ones have an @ in theirs: nobody can pass off bytes of his own as a model's.
        check_name("image", &request.name)?;
        let taken = || {
            Error::new(
                "already_registered",
                format!("image {:?}: expected a name that no image has", request.name),
            )
        };
        if self.lock().images.contains_key(&request.name) {
            return Err(taken());
        }
        for tensor in &request.tensors {
            let len = request.segment_bytes.get(tensor.segment as usize);
            let end = tensor.offset.checked_add(tensor.bytes);
            if len.is_none_or(|len| end.is_none_or(|end| end > *len)) {
                let message = format!("tensor {:?} lies beyond its segment {}", tensor.name, tensor.segment);
                return Err(Error::new("usage", message));
            }
        }
        let bytes = request.segment_bytes.iter().try_fold(0u64, |sum, len| sum.checked_add(*len));
        let bytes = bytes.filter(|bytes| *bytes > 0 && !request.segment_bytes.contains(&0));
        let bytes = bytes.ok_or_else(|| Error::new("usage", "expected segments of some bytes"))?;
        let have = host.device.memory()?.free_bytes;
        if bytes > have {
            return Err(Error::new(
                "device_too_small",
                format!("{bytes} bytes are needed, and {have} are free"),
            ));
        }
        let options = SegmentOptions { exportable: true };
        let allocate = |&len: &u64| host.device.allocate_with(len, options);
        let segments = request.segment_bytes.iter().map(allocate).collect::<Result<Vec<_>, _>>()?;
        let mut images = self.lock();
        // By another request, while this one allocated.
        if images.images.contains_key(&request.name) {
            return Err(taken());
        }
        let image = Arc::new(Image {
            name: request.name.clone(),
            device: host.uuid.clone(),
            model: String::new(),
            bytes,
            segments: segments.into_iter().map(|segment| book.add(segment)).collect(),
            tensors: request.tensors,
            lineage: request.lineage,
            maker,
            was_verified: false,
            is_sealed: AtomicBool::new(false),
            pinned: AtomicBool::new(false),
            leases: AtomicU32::new(0),
        });
        let hold = ImageHold::new(&image);
        images.images.insert(request.name, image);
        Ok(hold)
    }

    /// Ends the writing of an image.
    ///
    /// # Errors
    /// `unknown_image`, `not_permitted` for another than its maker, `wrong_state` if it is sealed.
    pub fn seal(&self, name: &str, session: u64) -> Result<Arc<Image>> {
        let image = self.get(name)?;
        if image.stage() == Stage::Sealed {
            return Err(Error::new("wrong_state", format!("image {name:?} is sealed")));
        }
        if image.maker != session {
            return Err(Error::new("not_permitted", format!("image {name:?} is another session's to seal")));
        }
        image.is_sealed.store(true, Ordering::Release);
        self.parking.image(&image);
        Ok(image)
    }

    /// Frees an image.
    ///
    /// # Errors
    /// `unknown_image`; `in_use` while it is held or pinned.
    pub fn evict(&self, name: &str, book: &SegmentBook) -> Result<u64> {
        let mut images = self.lock();
        let unknown = || Error::new("unknown_image", format!("there is no image {name:?}"));
        let image = images.images.get(name).ok_or_else(unknown)?;
        let leases = image.leases.load(Ordering::Acquire);
        if leases > 0 || image.pinned.load(Ordering::Relaxed) {
            let why = if leases > 0 { format!("{leases} leases hold it") } else { "it is pinned".to_owned() };
            return Err(Error::new("in_use", format!("image {name:?}: {why}")));
        }
        let image = images.images.remove(name);
        drop(images);
        Ok(image.map_or(0, |image| {
            self.parking.forget_image(&image);
            image.forget(book);
            image.bytes
        }))
    }

    /// What a session was writing when it ended is of no use to anybody.
    pub fn drop_unfinished(&self, session: u64, book: &SegmentBook) {
        let mut images = self.lock();
        let left: Vec<String> = images
            .images
            .values()
            .filter(|image| image.stage() == Stage::Writing && image.maker == session)
            .map(|image| image.name.clone())
            .collect();
        for name in left {
            if let Some(image) = images.images.remove(&name) {
                tracing::info!(
                    image = name,
                    session,
                    "an image that was never sealed is dropped with its maker"
                );
                image.forget(book);
            }
        }
    }
}

/// Loads a model into an image. Blocks.
///
/// # Errors
/// What the cache says; `digest_mismatch` and manifests' errors with `verify`.
pub fn load(
    model: &Registered,
    host: &HostDevice,
    wanted: &Wanted,
    cancel: Cancel,
    progress: Arc<dyn Fn(u64, u64) + Send + Sync>,
    book: &SegmentBook,
) -> Result<(Arc<Image>, LoadReport)> {
    let verify = if wanted.verify {
        let path = Manifest::default_path(&model.model);
        Some(Manifest::read(&path, &model.model)?.expectations(&model.model)?)
    } else {
        None
    };
    let options = LoadOptions {
        tensors: wanted.tensors.clone(),
        progress: Some(progress),
        verify,
        cancel: Some(cancel),
        exportable: host.device.capabilities().export_memory.is_available(),
        ..LoadOptions::default()
    };
    let loaded = load_model(&host.pump, &model.model, &options)?;
    let tensors = loaded.placements.iter().filter_map(|placement| {
        let tensor = model.model.tensors().get(placement.tensor as usize)?;
        Some(pb::Placement {
            name: tensor.name.to_string(),
            dtype: tensor.dtype.name().to_owned(),
            shape: tensor.shape.to_vec(),
            segment: placement.segment,
            offset: placement.offset_bytes,
            bytes: placement.len_bytes,
        })
    });
    let tensors = tensors.collect();
    let image = Arc::new(Image {
        name: wanted.name.clone(),
        device: host.uuid.clone(),
        model: model.name.to_string(),
        bytes: loaded.report.bytes,
        segments: loaded.segments.into_iter().map(|segment| book.add(segment)).collect(),
        tensors,
        lineage: HashMap::new(),
        maker: 0,
        was_verified: wanted.verify,
        is_sealed: AtomicBool::new(true),
        pinned: AtomicBool::new(false),
        leases: AtomicU32::new(0),
    });
    Ok((image, loaded.report))
}
