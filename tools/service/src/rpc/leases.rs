//! Leases: acquired, released, and what is wished of slots without one.

use super::{Answers, Rpc, blocking, timeout};
use crate::access::Peer;
use crate::arenas::Begun;
use crate::error::{Error, Result};
use crate::models::{Placed, Registered};
use crate::session::Session;
use spoc_cache::{Key, Profile};
use spoc_proto::v1 as pb;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// Answers of one stream that may wait to be sent.
const ANSWERS: usize = 256;
/// A hint without a deadline.
const SOME_TIME: Duration = Duration::from_secs(60);

impl Rpc {
    pub(super) async fn acquired(
        &self,
        asked: pb::AcquireRequest,
        session: &Arc<Session>,
    ) -> Result<pb::AcquireResponse> {
        self.state.check_takes_work()?;
        let lease = match asked.what {
            Some(pb::acquire_request::What::Keys(keys)) => {
                self.slots(keys, session, (asked.tag, asked.timeout_ms)).await?
            }
            Some(pb::acquire_request::What::Image(image)) => self.image(&image, session, asked.tag)?,
            None => return Err(Error::new("usage", "expected keys or an image to acquire")),
        };
        Ok(pb::AcquireResponse { tag: asked.tag, lease: Some(lease), ..pb::AcquireResponse::default() })
    }

    /// The model of a key set, and that it is on the device that is asked for.
    fn placed(&self, keys: &pb::KeySet) -> Result<Arc<Registered>> {
        let model = self.state.models.get(&keys.model)?;
        let most = self.state.config().quota.keys as usize;
        if keys.groups.len() > most {
            let message = format!("{} groups in one request, at most {most}", keys.groups.len());
            return Err(Error::new("quota_exceeded", message));
        }
        let placed = model.placed()?;
        if !keys.device.is_empty() && keys.device != placed.arena.device {
            let message =
                format!("{:?} is on device {}, not on {:?}", model.name, placed.arena.device, keys.device);
            return Err(Error::new("no_device", message));
        }
        Ok(model)
    }

    async fn slots(
        &self,
        keys: pb::KeySet,
        session: &Arc<Session>,
        (tag, timeout_ms): (u64, u64),
    ) -> Result<pb::Lease> {
        let model = self.placed(&keys)?;
        let arena = &model.placed()?.arena;
        match arena.begin(&model, &keys.groups)? {
            Begun::Ready(lease) => {
                arena.hand_over(lease, session, &self.state.segments, &model, &keys.groups, tag)
            }
            begun => {
                let many = |_| Error::new("quota_exceeded", "too many acquires wait for disk or room");
                let place = Arc::clone(&self.state.waiting).try_acquire_owned().map_err(many)?;
                self.state.somebody_waits.notify_one();
                // Gone as soon as this call is, which is when its client gives it up.
                let wanted = Arc::new(());
                let watched = Arc::downgrade(&wanted);
                let lease = blocking(move || {
                    let _place = place;
                    begun.wait(timeout(timeout_ms), &watched)
                })
                .await?;
                // Here, and not on that thread: a lease that nobody is told of is dropped with its answer.
                arena.hand_over(lease, session, &self.state.segments, &model, &keys.groups, tag)
            }
        }
    }

    fn image(&self, asked: &pb::ImageRef, session: &Session, tag: u64) -> Result<pb::Lease> {
        let hold = self.state.images.hold(&asked.image, session.number)?;
        session.grant_image(hold, tag, !asked.without_tensors)
    }

    /// Answers in the order in which they are ready. What can be answered at once is, without a task of its own.
    pub(super) fn acquiring(
        &self,
        peer: Peer,
        mut asked: Streaming<pb::AcquireRequest>,
    ) -> Answers<pb::AcquireResponse> {
        let (answers, receiver) = tokio::sync::mpsc::channel::<Unsent>(ANSWERS);
        let rpc = self.clone();
        tokio::spawn(async move {
            // A session is looked up once, not with every message.
            let mut known: Option<(String, Arc<Session>)> = None;
            while let Some(Ok(request)) = asked.next().await {
                let session = match &known {
                    Some((text, session)) if *text == request.session => Ok(Arc::clone(session)),
                    _ => rpc.state.sessions.get(&request.session, peer.uid),
                };
                let tag = request.tag;
                let session = match session {
                    Ok(session) => session,
                    Err(error) => {
                        if answers.send(Unsent::error(failed(tag, &error))).await.is_err() {
                            return;
                        }
                        continue;
                    }
                };
                known = Some((request.session.clone(), Arc::clone(&session)));
                let (rpc_of_all, answers_of_all) = (&rpc, &answers);
                let (rpc, answers) = (rpc.clone(), answers.clone());
                let mut work = Box::pin(async move {
                    let answer = tokio::select! {
                        biased;
                        answer = rpc.acquired(request, &session) => answer,
                        () = answers.closed() => return false,
                    };
                    let answer = answer.unwrap_or_else(|error| failed(tag, &error));
                    answers.send(Unsent { answer: Some(answer), session: Some(session) }).await.is_ok()
                });
                // Ready at its first look, nearly always; else it goes on beside those that come after it.
                let first =
                    std::future::poll_fn(|context| std::task::Poll::Ready(work.as_mut().poll(context))).await;
                match first {
                    std::task::Poll::Ready(true) => {}
                    std::task::Poll::Ready(false) => return,
                    std::task::Poll::Pending => {
                        // It counts like a call of its own.
                        let most = rpc_of_all.state.config().quota.in_flight;
                        match rpc_of_all.state.clients.enter(peer, most) {
                            Ok(place) => drop(tokio::spawn(async move {
                                let _place = place;
                                work.await
                            })),
                            Err(error) => {
                                drop(work);
                                if answers_of_all.send(Unsent::error(failed(tag, &error))).await.is_err() {
                                    return;
                                }
                            }
                        }
                    }
                }
            }
        });
        Box::pin(ReceiverStream::new(receiver).filter_map(|mut unsent| unsent.answer.take().map(Ok)))
    }

    pub(super) fn released(&self, asked: &pb::ReleaseRequest, session: &Session) -> pb::ReleaseResponse {
        let released = session.release(&asked.leases) + session.release_tags(&asked.tags);
        if released > 0 {
            self.state.poll_caches();
        }
        pb::ReleaseResponse { released }
    }

    fn keys(&self, asked: Option<&pb::KeySet>) -> Result<(Arc<Registered>, Vec<Key>)> {
        let asked = asked.ok_or_else(|| Error::new("usage", "expected keys"))?;
        let model = self.placed(asked)?;
        let keys = model.keys(&asked.groups)?;
        Ok((model, keys))
    }

    pub(super) fn prefetched(&self, asked: &pb::PrefetchRequest) -> Result<pb::PrefetchResponse> {
        self.state.check_takes_work()?;
        let (model, keys) = self.keys(asked.keys.as_ref())?;
        let placed = model.placed()?;
        if asked.is_refill {
            return refilled(&model, placed, &keys);
        }
        let now = Instant::now();
        let deadline = timeout(asked.deadline_ms).unwrap_or(SOME_TIME);
        let deadline = now.checked_add(deadline).unwrap_or(now + SOME_TIME);
        let hinted = placed.arena.cache.hint(&keys, deadline)?;
        let (is_off, useful) = placed.arena.cache.speculation();
        let because = if hinted.refused > 0 && is_off {
            let share =
                useful.map_or_else(String::new, |useful| format!(": {:.0} % were of use", 100.0 * useful));
            format!("reading ahead is turned off, because it did not pay{share}")
        } else {
            String::new()
        };
        Ok(pb::PrefetchResponse {
            queued: hinted.begun + hinted.waiting,
            resident: hinted.there,
            refused: hinted.refused,
            refused_because: because,
        })
    }

    pub(super) fn pinned(&self, asked: pb::PinRequest) -> Result<()> {
        match asked.what {
            Some(pb::pin_request::What::Image(name)) => {
                let image = self.state.images.get(&name)?;
                image.set_pinned(!asked.unpin);
                if image.stage() == crate::images::Stage::Sealed {
                    self.state.parking.image(&image);
                }
            }
            Some(pb::pin_request::What::Keys(keys)) => {
                let (model, keys) = self.keys(Some(&keys))?;
                let placed = model.placed()?;
                let cache = &placed.arena.cache;
                if asked.unpin { cache.unpin(&keys)? } else { cache.pin(&keys)? }
            }
            None => return Err(Error::new("usage", "expected keys or an image to pin")),
        }
        Ok(())
    }

    pub(super) async fn evicted(&self, asked: pb::EvictRequest) -> Result<pb::EvictResponse> {
        let state = Arc::clone(&self.state);
        match asked.what {
            Some(pb::evict_request::What::Image(name)) => {
                blocking(move || {
                    state.sweep();
                    let freed_bytes = state.images.evict(&name, &state.segments)?;
                    state.events.tell("evicted", "", "", || name.clone());
                    Ok(pb::EvictResponse { evicted: 1, held: 0, freed_bytes })
                })
                .await
            }
            Some(pb::evict_request::What::Keys(keys)) => {
                let (model, keys) = self.keys(Some(&keys))?;
                let placed = model.placed()?;
                state.sweep();
                let evicted = placed.arena.cache.evict(&keys)?;
                Ok(pb::EvictResponse {
                    evicted: evicted.left,
                    held: evicted.held,
                    freed_bytes: evicted.bytes,
                })
            }
            None => Err(Error::new("usage", "expected keys or an image to evict")),
        }
    }
}

/// Reads groups into slots that are free, behind everything else.
fn refilled(model: &Registered, placed: &Placed, keys: &[Key]) -> Result<pb::PrefetchResponse> {
    let groups = keys.iter().filter_map(|key| Some((model.catalogue.group(key.group)?.name.clone(), 0)));
    let queued = placed.arena.cache.warm(placed.id, &Profile { groups: groups.collect() })?;
    let refused = u32::try_from(keys.len()).unwrap_or(u32::MAX).saturating_sub(queued);
    let because = if refused > 0 { "they are there, or no slot is free" } else { "" };
    Ok(pb::PrefetchResponse { queued, resident: 0, refused, refused_because: because.to_owned() })
}

/// An answer on its way to a client. If it is dropped there, nobody knows of its lease, and that ends.
struct Unsent {
    answer: Option<pb::AcquireResponse>,
    session: Option<Arc<Session>>,
}

impl Unsent {
    fn error(answer: pb::AcquireResponse) -> Unsent {
        Unsent { answer: Some(answer), session: None }
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        let lease = self.answer.as_ref().and_then(|answer| answer.lease.as_ref());
        if let (Some(session), Some(lease)) = (&self.session, lease) {
            session.release(&[lease.id]);
        }
    }
}

fn failed(tag: u64, error: &Error) -> pb::AcquireResponse {
    pb::AcquireResponse {
        tag,
        lease: None,
        error_kind: error.kind().to_owned(),
        error_message: error.message().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Quota;
    use crate::session::{Held, SessionBook};

    #[test]
    fn an_answer_that_is_not_sent_ends_its_lease() {
        let (book, peer) = (SessionBook::default(), Peer { pid: 1, uid: 2, gid: 3 });
        let (session, token) = book.open("test", peer, Quota::default()).expect("opened");
        book.attach(&token, peer).expect("attached");
        let held = || Held::Slots { segments: Vec::new(), model: "m".into(), bytes: 1 };
        let mut answers = (0..3).map(|tag| {
            let id = session.grant(1, 0, held).expect("granted").id;
            let lease = Some(pb::Lease { id, ..pb::Lease::default() });
            let answer = pb::AcquireResponse { tag, lease, ..pb::AcquireResponse::default() };
            Unsent { answer: Some(answer), session: Some(Arc::clone(&session)) }
        });
        let mut sent = answers.next().expect("one");
        assert!(sent.answer.take().is_some());
        drop(sent);
        drop(answers.next());
        assert_eq!(session.held(), (1, 1));
        drop(Unsent::error(failed(9, &Error::new("usage", "none"))));
    }
}
