//! Tensors' own digests, from chunks that arrive in any order: those of one file are put in order, and digested as their
//! turn comes.
//!
//! A chunk that is early is kept, up to half of the ring: what is read past the page cache may run far ahead of what is
//! read through it, and the ring must not fill up with what waits for a read that has no chunk. Beyond that, chunks are
//! let go of, and their bytes read once more in their turn.

use std::collections::{BTreeMap, HashMap};

use spoc_io::{Chunk, Digester, Manifest, Model, ReadPlan};

use crate::failure::{EXIT_DAMAGED, Failure};

/// What tensors of several blocks must be as a whole. One block is a whole tensor already.
pub(super) struct Whole<'a> {
    model: &'a Model,
    manifest: &'a Manifest,
    plan: &'a ReadPlan,
    files: Vec<InFile>,
    /// Tensors that have begun, and how many of their bytes were seen.
    begun: HashMap<u32, (Digester, u64)>,
    /// Chunks that are kept, and how many may be.
    kept: usize,
    kept_max: usize,
    differ: Vec<Failure>,
}

/// The reads of one file.
#[derive(Default)]
struct InFile {
    /// Positions in the plan, by place.
    reads: Vec<u32>,
    next: usize,
    /// What has come already; without its chunk where that was let go of.
    early: BTreeMap<u32, Option<Chunk>>,
    /// One of its reads failed: its tensors are known to be bad, or not known.
    broken: bool,
}

impl<'a> Whole<'a> {
    /// `plan` reads the model's tensors, each for the target of its number, with a ring of so many chunks.
    pub(super) fn new(model: &'a Model, manifest: &'a Manifest, plan: &'a ReadPlan, chunks: usize) -> Self {
        let mut files: Vec<InFile> = model.files().iter().map(|_| InFile::default()).collect();
        for (at, read) in (0..).zip(plan.reads()) {
            files[read.file as usize].reads.push(at);
        }
        let (begun, differ) = (HashMap::new(), Vec::new());
        Self { model, manifest, plan, files, begun, kept: 0, kept_max: chunks / 2, differ }
    }

    /// Takes the answer to a read: its chunk, or none where it failed.
    pub(super) fn take(&mut self, read: u32, chunk: Option<Chunk>) {
        let at = self.plan.reads()[read as usize].file as usize;
        let Some(chunk) = chunk else {
            return self.break_off(at);
        };
        if self.files[at].broken {
            return;
        }
        self.files[at].early.insert(read, Some(chunk));
        self.kept += 1;
        while let Some((read, chunk)) = self.files[at].next_in_order() {
            if let Some(chunk) = chunk {
                self.kept -= 1;
                self.digest(read, chunk.bytes());
                continue;
            }
            match self.read_again(read) {
                Ok(bytes) => self.digest(read, &bytes),
                Err(error) => {
                    self.differ.push(error.into());
                    return self.break_off(at);
                }
            }
        }
        if self.kept > self.kept_max
            && let Some(chunk) = self.files[at].early.values_mut().rev().find(|chunk| chunk.is_some())
        {
            *chunk = None;
            self.kept -= 1;
        }
    }

    fn break_off(&mut self, at: usize) {
        self.files[at].broken = true;
        let early = std::mem::take(&mut self.files[at].early);
        self.kept -= early.values().flatten().count();
    }

    /// What the chunk of a read held.
    fn read_again(&self, read: u32) -> spoc_io::Result<Vec<u8>> {
        let read = &self.plan.reads()[read as usize];
        let mut bytes = vec![0; read.need.end as usize];
        let from = read.offset + u64::from(read.need.start);
        self.plan.files()[read.file as usize].read_exact_at(&mut bytes[read.need.start as usize..], from)?;
        Ok(bytes)
    }

    fn digest(&mut self, read: u32, chunk: &[u8]) {
        for piece in self.plan.pieces_of(&self.plan.reads()[read as usize]) {
            let entry = &self.manifest.tensors[piece.target as usize];
            if entry.blocks.is_empty() {
                continue;
            }
            let start = piece.chunk_offset as usize;
            let (digester, seen) =
                self.begun.entry(piece.target).or_insert_with(|| (Digester::new(self.manifest.digest), 0));
            digester.update(&chunk[start..start + piece.len_bytes as usize]);
            *seen += u64::from(piece.len_bytes);
            if *seen == entry.len_bytes
                && let Some((digester, _)) = self.begun.remove(&piece.target)
            {
                let found = digester.finish();
                if found != entry.digest {
                    self.differ.push(self.difference(piece.target, &found.to_string()));
                }
            }
        }
    }

    fn difference(&self, tensor: u32, found: &str) -> Failure {
        let entry = &self.manifest.tensors[tensor as usize];
        let path = self.model.files()[entry.file as usize].path();
        let message = format!(
            "{}: digest_mismatch: at byte {}: tensor '{}' of {} bytes: expected {} {}, found {found}; all its blocks agree, so that the manifest contradicts itself",
            path.display(),
            entry.offset,
            entry.name,
            entry.len_bytes,
            self.manifest.digest,
            entry.digest
        );
        Failure::new("digest_mismatch", message).at(path).exit(EXIT_DAMAGED)
    }

    /// The differences of tensors whose blocks all agree.
    pub(super) fn differ(self) -> Vec<Failure> {
        self.differ
    }
}

impl InFile {
    fn next_in_order(&mut self) -> Option<(u32, Option<Chunk>)> {
        let read = *self.reads.get(self.next)?;
        let chunk = self.early.remove(&read)?;
        self.next += 1;
        Some((read, chunk))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use spoc_io::{
        AnonymousRegion, DigestKind, Dtype, OpenOptions, PlanBuilder, PlanOptions, ReadClass, ReadRequest,
        Reader, ReaderOptions, SafetensorsHeader, open_model,
    };

    use super::*;

    #[test]
    fn whatever_the_order_and_however_few_are_kept_a_digest_is_of_all_bytes() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("m.safetensors");
        let mut header = SafetensorsHeader::new();
        header.add("long", Dtype::U8, &[5_000_000]).expect("a tensor");
        header.add("short", Dtype::U8, &[700_000]).expect("a tensor");
        let mut file = header.bytes();
        file.extend((0..5_700_000_u32).map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()[0]));
        std::fs::write(&path, file).expect("written");
        let model = open_model(&path, &OpenOptions::default()).expect("a model");
        let manifest = Manifest::of(&model, DigestKind::Xxh3, &|_| {}).expect("a manifest");
        let mut builder = PlanBuilder::new(model.files(), PlanOptions::default());
        assert!(!manifest.tensors[0].blocks.is_empty() && !manifest.tensors[1].blocks.is_empty());
        for (target, tensor) in (0..).zip(model.tensors()) {
            builder.add(target, tensor.extent, 0).expect("inside");
        }
        let plan = Arc::new(builder.build().expect("a plan"));
        let orders: [fn(&mut Vec<u32>); 3] = [|_| {}, |reads| reads.reverse(), |reads| reads.rotate_left(2)];
        for (order, chunks) in orders.into_iter().flat_map(|order| [(order, 2), (order, 16)]) {
            let region = Arc::new(AnonymousRegion::new(16 << 20).expect("memory"));
            let reader = Reader::start(region, ReaderOptions::default()).expect("a reader");
            let request = ReadRequest { plan: Arc::clone(&plan), class: ReadClass::Demand, token: 0 };
            reader.submit(request).expect("taken");
            let mut chunks_of = HashMap::new();
            for _ in plan.reads() {
                let completion = reader.completions().recv().expect("an answer");
                chunks_of.insert(completion.read, completion.outcome.expect("read"));
            }
            let mut reads: Vec<u32> = (0..).take(plan.reads().len()).collect();
            order(&mut reads);
            let mut whole = Whole::new(&model, &manifest, &plan, chunks);
            for read in &reads {
                whole.take(*read, chunks_of.remove(read));
                assert!(whole.kept <= chunks / 2);
            }
            assert_eq!((whole.kept, whole.begun.len()), (0, 0));
            assert!(whole.differ().is_empty());
        }
    }
}
