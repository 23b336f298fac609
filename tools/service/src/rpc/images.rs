//! Images: loaded, written, sealed.

use super::{Answers, Rpc, blocking};
use crate::error::{Error, Result};
use crate::images::{Image, LoadState, Wanted, load};
use crate::models::Registered;
use crate::session::Session;
use crate::state::State;
use spoc_cache::load::{Cancel, LoadReport};
use spoc_proto::v1 as pb;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::WatchStream;
use tonic::Status;

impl Rpc {
    pub(super) fn loading(&self, asked: &pb::LoadRequest) -> Result<Answers<pb::LoadProgress>> {
        self.state.check_takes_work()?;
        let model = self.state.models.get(&asked.model)?;
        let host = &self.state.host;
        let device = host.get(&asked.device)?;
        let wanted = Wanted::new(&model, host.short(device), asked);
        let device = device.uuid.clone();
        let start = |number| begin(&self.state, number, model, device, &wanted);
        let Some(load) = self.state.images.join(&wanted, start)? else {
            let done =
                pb::LoadDone { image: wanted.name.clone(), was_resident: true, ..pb::LoadDone::default() };
            let bytes = self.state.images.get(&wanted.name)?.bytes;
            let progress = pb::LoadProgress { done_bytes: bytes, total_bytes: bytes, done: Some(done) };
            return Ok(Box::pin(tokio_stream::once(Ok(progress))));
        };
        let steps = WatchStream::new(load).map(step);
        Ok(Box::pin(UntilDone { steps: Box::pin(steps), ended: false }))
    }

    pub(super) async fn create(
        &self,
        asked: pb::CreateImageRequest,
        session: Arc<Session>,
    ) -> Result<pb::CreateImageResponse> {
        self.state.check_takes_work()?;
        let state = Arc::clone(&self.state);
        blocking(move || {
            let host = state.host.get(&asked.device)?;
            let name = asked.name.clone();
            let hold = state.images.create(asked, host, session.number, &state.segments)?;
            let image = Arc::clone(hold.image());
            match session.grant_image(hold, 0, true) {
                Ok(lease) => Ok(pb::CreateImageResponse { image: Some(image.told()), lease: Some(lease) }),
                Err(error) => {
                    // Nobody could write it.
                    state.images.evict(&name, &state.segments)?;
                    Err(error)
                }
            }
        })
        .await
    }

    pub(super) fn seal(
        &self,
        asked: &pb::SealImageRequest,
        session: &Session,
    ) -> Result<pb::SealImageResponse> {
        let image = self.state.images.seal(&asked.image, session.number)?;
        self.state.events.tell("sealed", "", &image.device, || image.name.clone());
        Ok(pb::SealImageResponse { image: Some(image.told()) })
    }

    pub(super) fn images(&self) -> pb::ListImagesResponse {
        let mut images: Vec<pb::Image> = self.state.images.all().iter().map(|image| image.told()).collect();
        images.extend(self.state.images.loading().into_iter().map(|(name, state)| pb::Image {
            name,
            state: "loading".to_owned(),
            bytes: state.total_bytes,
            ..pb::Image::default()
        }));
        pb::ListImagesResponse { images }
    }
}

fn step(state: LoadState) -> Result<pb::LoadProgress, Status> {
    let LoadState { done_bytes, total_bytes, outcome } = state;
    let done = outcome.transpose().map_err(Status::from)?;
    Ok(pb::LoadProgress { done_bytes, total_bytes, done })
}

/// Ends behind the first message that is the last.
struct UntilDone {
    steps: Answers<pb::LoadProgress>,
    ended: bool,
}

impl tokio_stream::Stream for UntilDone {
    type Item = Result<pb::LoadProgress, Status>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        use std::task::Poll;
        if self.ended {
            return Poll::Ready(None);
        }
        let next = self.steps.as_mut().poll_next(context);
        if let Poll::Ready(item) = &next {
            self.ended = item
                .as_ref()
                .is_none_or(|item| item.as_ref().is_ok_and(|step| step.done.is_some()) || item.is_err());
        }
        next
    }
}

/// Starts a load on a thread of its own; it is cancelled when nobody waits for it any more.
fn begin(
    state: &Arc<State>,
    number: u64,
    model: Arc<Registered>,
    device: String,
    wanted: &Wanted,
) -> watch::Receiver<LoadState> {
    let (told, heard) = watch::channel(LoadState::default());
    let told = Arc::new(told);
    let cancel = Cancel::new();
    let (state, wanted) = (Arc::clone(state), wanted.clone());
    let progress = {
        let told = Arc::downgrade(&told);
        move |done_bytes, total_bytes| {
            if let Some(told) = told.upgrade() {
                told.send_modify(|state| (state.done_bytes, state.total_bytes) = (done_bytes, total_bytes));
            }
        }
    };
    let work = {
        let (state, wanted, cancel, model) =
            (Arc::clone(&state), wanted.clone(), cancel.clone(), Arc::clone(&model));
        let device = device.clone();
        move || {
            let host = state.host.get(&device)?;
            load(&model, host, &wanted, cancel, Arc::new(progress), &state.segments)
        }
    };
    tokio::spawn(async move {
        let mut loading = tokio::task::spawn_blocking(work);
        let ended = tokio::select! {
            ended = &mut loading => ended,
            () = given_up(&state, &wanted.name, number, &told) => {
                cancel.cancel();
                loading.await
            }
        };
        let ended =
            ended.unwrap_or_else(|error| Err(Error::new("internal", format!("a load's thread: {error}"))));
        finish(&state, number, &model, &device, &wanted, ended, &told);
    });
    heard
}

/// Tells everyone how a load ended; what nobody wants any more is dropped.
fn finish(
    state: &State,
    number: u64,
    model: &Arc<Registered>,
    device: &str,
    wanted: &Wanted,
    ended: Result<(Arc<Image>, LoadReport)>,
    told: &watch::Sender<LoadState>,
) {
    let outcome = ended.map(|(image, report)| {
        let done = pb::LoadDone {
            image: wanted.name.clone(),
            was_resident: false,
            prepare_s: report.prepare_time.as_secs_f64(),
            stream_s: report.stream_time.as_secs_f64(),
            io_path: report.reader.path.as_str().to_owned(),
            io_reason: report.reader.reason,
        };
        (image, done)
    });
    match outcome {
        Ok((image, done)) => {
            tracing::info!(image = wanted.name, bytes = image.bytes, seconds = done.stream_s, "loaded");
            if !state.images.loaded(&wanted.name, number, Some(&image)) {
                // It was done just as it was given up.
                image.forget(&state.segments);
                return;
            }
            state.events.tell("loaded", &model.name, device, || wanted.name.clone());
            told.send_modify(|state| state.outcome = Some(Ok(done)));
        }
        Err(error) => {
            tracing::warn!(image = wanted.name, %error, "a load has failed");
            state.events.tell("load_failed", &model.name, device, || error.to_string());
            state.images.loaded(&wanted.name, number, None);
            told.send_modify(|state| state.outcome = Some(Err(error)));
        }
    }
}

/// Until nobody waits for the load any more, and nobody can join it.
async fn given_up(state: &State, name: &str, number: u64, told: &watch::Sender<LoadState>) {
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        if state.images.give_up(name, number, told) {
            return;
        }
    }
}
