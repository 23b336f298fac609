//! A cache on the fake device, with the test in the place of the pump: it delivers chunks, fails reads and
//! lets copies run when it likes.

use crate::cache::{CacheOptions, SlotCache};
use crate::catalogue::{Catalogue, GroupRules};
use crate::policy::PolicyKind;
use crate::pump::{Begin, Feed, Job, JobId};
use crate::stats::Counters;
use crate::{Error, ErrorKind, Key, Result};
use spoc_driver::fake::{self, FakeControl, FakeOptions, WaitMode};
use spoc_driver::{BackendKind, CopyRange, Device, DeviceSelector, Driver, Event, Stream, StreamOptions};
use spoc_io::{Dtype, OpenOptions, PlanOptions, ReadClass, SafetensorsHeader};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

pub const GROUPS: u32 = 7;
/// Four reads a group.
pub const GROUP_BYTES: usize = 3 * 4096 + 1000;
/// A slot that holds one, on the fake.
pub const SLOT_BYTES: u64 = (GROUP_BYTES as u64).next_multiple_of(4096);

/// Bytes of a group: no two groups agree anywhere.
pub fn bytes_of(group: u32) -> Vec<u8> {
    let salt = u8::try_from(group).unwrap() + 1;
    (0..GROUP_BYTES).map(|at| salt.wrapping_mul(16) ^ u8::try_from(at % 13).unwrap()).collect()
}

/// One file for all tests; group n is layer n.
pub fn catalogue() -> Arc<Catalogue> {
    static MADE: OnceLock<(tempfile::TempDir, Arc<Catalogue>)> = OnceLock::new();
    let (_, catalogue) = MADE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut header = SafetensorsHeader::new();
        for group in 0..GROUPS {
            header.add(&format!("layers.{group}.w"), Dtype::U8, &[GROUP_BYTES as u64]).unwrap();
        }
        let mut file = header.bytes();
        (0..GROUPS).for_each(|group| file.extend(bytes_of(group)));
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, file).unwrap();
        let model = spoc_io::open_model(&path, &OpenOptions::default()).unwrap();
        let catalogue = Catalogue::from_model(&model, &GroupRules::default()).unwrap();
        assert_eq!(catalogue.groups().len(), GROUPS as usize);
        (folder, Arc::new(catalogue))
    });
    Arc::clone(catalogue)
}

/// One job, as the pump's table and thread would keep it.
struct Running {
    job: Job,
    delivered: usize,
    begun: bool,
    dead: bool,
    in_flight: Vec<Event>,
}

#[derive(Default)]
pub struct TestFeed {
    jobs: Mutex<Vec<Option<Running>>>,
    pub refuse: AtomicBool,
}

impl Feed for TestFeed {
    fn submit(&self, job: Job) -> Result<JobId> {
        if self.refuse.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Closed));
        }
        let mut jobs = self.jobs.lock().unwrap();
        jobs.push(Some(Running { job, delivered: 0, begun: false, dead: false, in_flight: Vec::new() }));
        Ok(JobId::from_token(jobs.len() as u64 - 1))
    }

    fn promote(&self, job: JobId, class: ReadClass) {
        let index = usize::try_from(job.token()).unwrap();
        if let Some(running) = &mut self.jobs.lock().unwrap()[index] {
            running.job.class = running.job.class.min(class);
        }
    }

    fn cancel(&self, job: JobId) {
        let index = usize::try_from(job.token()).unwrap();
        if let Some(running) = &mut self.jobs.lock().unwrap()[index] {
            running.dead = true;
        }
    }
}

/// What a delivery did to a group, for the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Did {
    Nothing,
    Published,
    Failed,
}

pub struct Harness {
    pub control: FakeControl,
    pub device: Device,
    pub feed: Arc<TestFeed>,
    pub cache: SlotCache,
    pub keys: Vec<Key>,
    pub copies: Stream,
}

impl Harness {
    pub fn new(slots: u32, policy: PolicyKind) -> Harness {
        Harness::with(slots, CacheOptions { policy, ..CacheOptions::default() })
    }

    /// A cache of so many slots, set up otherwise as these options say.
    pub fn with(slots: u32, options: CacheOptions) -> Harness {
        let fake_options = FakeOptions { wait_mode: WaitMode::Drive, ..FakeOptions::default() };
        let (probed, control) = fake::backend_with(fake_options);
        let device = Driver::new(vec![probed]).open(&DeviceSelector::index(BackendKind::Fake, 0)).unwrap();
        let feed = Arc::new(TestFeed::default());
        let catalogue = catalogue();
        let cache = SlotCache::build(
            &device,
            Arc::clone(&feed) as Arc<dyn Feed>,
            Counters::on_heap(slots.max(options.slots_max) as usize),
            PlanOptions { chunk_bytes: 4096, gap_bytes: 0 },
            &[CacheOptions::for_catalogue(&catalogue, slots).class()],
            options,
        )
        .unwrap();
        cache.wait_tier();
        let model = cache.register(catalogue).unwrap();
        let keys = cache.keys(model);
        let copies = device.create_stream(StreamOptions::default()).unwrap();
        Harness { control, device, feed, cache, keys, copies }
    }

    pub fn jobs(&self) -> Vec<usize> {
        let jobs = self.feed.jobs.lock().unwrap();
        (0..jobs.len()).filter(|&index| jobs[index].is_some()).collect()
    }

    pub fn class_of_job(&self, index: usize) -> Option<ReadClass> {
        self.feed.jobs.lock().unwrap()[index].as_ref().map(|running| running.job.class)
    }

    /// The slot that a job fills, and which fill of it.
    pub fn slot_of_job(&self, index: usize) -> Option<(u32, u64)> {
        let jobs = self.feed.jobs.lock().unwrap();
        let tag = jobs[index].as_ref()?.job.tag;
        Some((u32::try_from(tag & u64::from(u32::MAX)).unwrap(), tag >> 32))
    }

    fn take(&self, index: usize) -> Option<Running> {
        self.feed.jobs.lock().unwrap()[index].take()
    }

    /// Puts a job back; it may have been cancelled by the calls made meanwhile only through its own sink, and
    /// those do not cancel.
    fn put(&self, index: usize, running: Running) {
        self.feed.jobs.lock().unwrap()[index] = Some(running);
    }

    fn reads(running: &Running) -> usize {
        if running.job.held.is_some() { 1 } else { running.job.plan.reads().len() }
    }

    /// The next chunk of a job arrives, or its read fails.
    pub fn deliver(&self, index: usize, outcome: std::result::Result<(), Error>) -> Did {
        let Some(mut running) = self.take(index) else { return Did::Nothing };
        let mut did = Did::Nothing;
        let joins = running.job.held.as_ref().is_some_and(|kept| !kept.is_there().unwrap());
        if running.delivered < Harness::reads(&running) && (running.dead || !joins) {
            let read = running.delivered;
            running.delivered += 1;
            match outcome {
                _ if running.dead => {}
                Ok(()) => did = self.copy(&mut running, read),
                Err(error) => {
                    running.dead = true;
                    running.job.sink.failed(running.job.tag, &error, false);
                    did = Did::Failed;
                }
            }
        }
        self.put(index, running);
        did
    }

    fn copy(&self, running: &mut Running, read: usize) -> Did {
        if !running.begun {
            if running.job.sink.begin(running.job.tag, &self.copies).unwrap() == Begin::Skip {
                running.dead = true;
                return Did::Nothing;
            }
            running.begun = true;
        }
        if let Some(kept) = &running.job.held {
            let (dst, base) = running.job.places.of(0).unwrap();
            kept.copy_to(&self.copies, dst, base).unwrap();
            return self.copied(running);
        }
        let planned = &running.job.plan.reads()[read];
        let file = &running.job.plan.files()[planned.file as usize];
        let mut bytes = vec![0; planned.need.end as usize];
        file.read_exact_at(&mut bytes, planned.offset).unwrap();
        let ranges: Vec<CopyRange<'_>> = running
            .job
            .plan
            .pieces_of(planned)
            .iter()
            .map(|piece| {
                let (dst, base) = running.job.places.of(piece.target).unwrap();
                CopyRange {
                    src_offset: piece.chunk_offset as usize,
                    dst,
                    dst_offset: base + piece.target_offset,
                    len_bytes: piece.len_bytes as usize,
                }
            })
            .collect();
        self.copies.copy_to_device(self.control.source(bytes), &ranges).unwrap();
        self.copied(running)
    }

    /// Copies of a job were enqueued.
    fn copied(&self, running: &mut Running) -> Did {
        let event = self.device.create_event().unwrap();
        self.copies.record(&event).unwrap();
        running.in_flight.push(event);
        if running.delivered < Harness::reads(running) {
            return Did::Nothing;
        }
        running.job.sink.published(running.job.tag, &self.copies).unwrap();
        Did::Published
    }

    /// What the pump does when copies have run. True if the job ended.
    pub fn retire(&self, index: usize) -> bool {
        let Some(mut running) = self.take(index) else { return false };
        running.in_flight.retain(|event| !event.query().unwrap());
        if running.delivered == Harness::reads(&running) && running.in_flight.is_empty() {
            running.job.sink.ended(running.job.tag);
            return true;
        }
        self.put(index, running);
        false
    }

    /// Delivers and runs everything there is.
    pub fn finish_jobs(&self) {
        while let Some(&index) = self.jobs().first() {
            self.deliver(index, Ok(()));
            self.control.run_all();
            self.retire(index);
        }
    }
}

pub fn read_error() -> Error {
    spoc_io::Error::new(spoc_io::ErrorKind::IoError, "the disk is gone").into()
}
