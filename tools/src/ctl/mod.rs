//! `spoc-loader ctl`: every call of the control plane that needs no session, for people and for scripts.

pub mod args;
mod text;

use std::path::Path;

use serde_json::{Value, json};
use spoc_client::{Client, ms};
use spoc_proto::v1 as pb;
use spoc_proto::v1::spoc_client::SpocClient;
use tokio_stream::StreamExt;
use tonic::Status;
use tonic::transport::Channel;

use crate::failure::{Failure, Result};
use crate::out::Out;
use crate::progress;
use args::{CtlArgs, CtlCommand};

type Rpc = SpocClient<Channel>;

/// Runs the command.
///
/// # Errors
/// `service_unreachable`; what the service says, by its kinds.
pub fn run(args: &CtlArgs, out: Out) -> Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new("os", format_args!("starting: {error}")))?;
    let socket = args.socket.clone().unwrap_or_else(spoc_service::default_socket);
    runtime.block_on(async {
        let named = |error: spoc_client::Error| {
            let failure = Failure::from(error);
            if failure.kind == "service_unreachable" { failure.at(&socket) } else { failure }
        };
        let mut rpc = Client::connect(&socket).await.and_then(|client| client.rpc()).map_err(named)?;
        call(&mut rpc, &args.command, out).await
    })?;
    Ok(0)
}

async fn call(rpc: &mut Rpc, command: &CtlCommand, out: Out) -> Result<()> {
    let answered = one(rpc, command, out).await.map_err(spoc_client::Error::from)?;
    if let Some((value, lines)) = answered {
        out.answer(&value, |_| lines.join("\n"));
    }
    Ok(())
}

/// What is answered by JSON, and what by lines for people.
type Answered = Option<(Value, Vec<String>)>;

async fn one(rpc: &mut Rpc, command: &CtlCommand, out: Out) -> Result<Answered, Status> {
    let done = |value: Value, line: String| Ok(Some((value, vec![line])));
    match command {
        CtlCommand::Info => {
            let info = rpc.get_info(pb::GetInfoRequest {}).await?.into_inner();
            Ok(Some((text::info_json(&info), text::info(&info))))
        }
        CtlCommand::Models => {
            let models = rpc.list_models(pb::ListModelsRequest {}).await?.into_inner().models;
            Ok(Some((json!(models.iter().map(text::model_json).collect::<Vec<_>>()), text::models(&models))))
        }
        CtlCommand::Register { source, name, arena, groups } => {
            let request = pb::RegisterModelRequest {
                source: absolute(source),
                name: name.clone(),
                arena: arena.clone(),
                group_pattern: groups.clone(),
                ..pb::RegisterModelRequest::default()
            };
            let model = rpc.register_model(request).await?.into_inner().model.unwrap_or_default();
            Ok(Some((text::model_json(&model), text::models(&[model]))))
        }
        CtlCommand::Unregister { model } => {
            rpc.unregister_model(pb::UnregisterModelRequest { model: model.clone() }).await?;
            done(json!({"unregistered": model}), format!("{model} is forgotten"))
        }
        CtlCommand::Describe { model } => describe(rpc, model).await,
        CtlCommand::Load { model, device, verify, tensors } => {
            let request = pb::LoadRequest {
                model: model.clone(),
                device: device.clone(),
                verify: *verify,
                tensors: tensors.clone(),
            };
            load(rpc, request, out).await
        }
        CtlCommand::Images => {
            let images = rpc.list_images(pb::ListImagesRequest {}).await?.into_inner().images;
            Ok(Some((json!(images.iter().map(text::image_json).collect::<Vec<_>>()), text::images(&images))))
        }
        CtlCommand::Pin { image } | CtlCommand::Unpin { image } => {
            let unpin = matches!(command, CtlCommand::Unpin { .. });
            let what = Some(pb::pin_request::What::Image(image.clone()));
            rpc.pin(pb::PinRequest { what, unpin, ..pb::PinRequest::default() }).await?;
            done(
                json!({"image": image, "pinned": !unpin}),
                format!("{image} is {}pinned", if unpin { "un" } else { "" }),
            )
        }
        CtlCommand::Evict { name, groups } => {
            let what = if groups.is_empty() {
                pb::evict_request::What::Image(name.clone())
            } else {
                pb::evict_request::What::Keys(keys(name, groups))
            };
            let told = rpc.evict(pb::EvictRequest { what: Some(what) }).await?.into_inner();
            let freed = crate::units::bytes(told.freed_bytes);
            let line = format!("{} left, {freed}; {} stay because they are held", told.evicted, told.held);
            done(json!({"evicted": told.evicted, "held": told.held, "freed_bytes": told.freed_bytes}), line)
        }
        CtlCommand::Prefetch { model, groups } => {
            let request =
                pb::PrefetchRequest { keys: Some(keys(model, groups)), ..pb::PrefetchRequest::default() };
            let told = rpc.prefetch(request).await?.into_inner();
            let why = if told.refused > 0 { format!(" ({})", told.refused_because) } else { String::new() };
            let line =
                format!("{} resident, {} queued, {} refused{why}", told.resident, told.queued, told.refused);
            done(json!({"resident": told.resident, "queued": told.queued, "refused": told.refused}), line)
        }
        CtlCommand::Arenas => {
            let arenas = rpc.list_arenas(pb::ListArenasRequest {}).await?.into_inner().arenas;
            Ok(Some((json!(arenas.iter().map(text::arena_json).collect::<Vec<_>>()), text::arenas(&arenas))))
        }
        CtlCommand::Resize { arena, slots, timeout } => {
            let request = pb::ResizeRequest { arena: arena.clone(), slots: *slots, timeout_ms: ms(*timeout) };
            let arena = rpc.resize(request).await?.into_inner().arena.unwrap_or_default();
            Ok(Some((text::arena_json(&arena), text::arenas(&[arena]))))
        }
        CtlCommand::GiveBack { arena, bytes, timeout } => {
            let request =
                pb::GiveBackRequest { arena: arena.clone(), bytes: bytes.0, timeout_ms: ms(*timeout) };
            let freed = rpc.give_back(request).await?.into_inner().freed_bytes;
            done(json!({"freed_bytes": freed}), format!("{} given back", crate::units::bytes(freed)))
        }
        CtlCommand::Stats => {
            let stats = rpc.get_stats(pb::GetStatsRequest {}).await?.into_inner();
            Ok(Some((text::stats_json(&stats), text::stats(&stats))))
        }
        CtlCommand::Events => {
            let mut events = rpc.watch_events(pb::WatchEventsRequest {}).await?.into_inner();
            while let Some(event) = events.next().await {
                let event = event?;
                out.answer(&text::event_json(&event), |_| text::event(&event));
            }
            Ok(None)
        }
        CtlCommand::Drain { timeout } => {
            let left =
                rpc.drain(pb::DrainRequest { timeout_ms: ms(*timeout) }).await?.into_inner().leases_left;
            done(json!({"leases_left": left}), format!("drained; {left} leases are left"))
        }
        CtlCommand::Shutdown { timeout } => {
            rpc.shutdown(pb::ShutdownRequest { timeout_ms: ms(*timeout) }).await?;
            done(json!({"shutdown": true}), "the service ends".to_owned())
        }
    }
}

fn keys(model: &str, groups: &[u32]) -> pb::KeySet {
    pb::KeySet { model: model.to_owned(), device: String::new(), groups: groups.to_vec() }
}

/// A path means what it means here, not where the service was started.
fn absolute(source: &str) -> String {
    let path = Path::new(source);
    let here = if path.exists() { std::path::absolute(path).ok() } else { None };
    here.map_or_else(|| source.to_owned(), |path| path.to_string_lossy().into_owned())
}

async fn describe(rpc: &mut Rpc, model: &str) -> Result<Answered, Status> {
    let mut pages =
        rpc.describe_model(pb::DescribeModelRequest { model: model.to_owned() }).await?.into_inner();
    let (mut groups, mut tensors) = (Vec::new(), Vec::new());
    while let Some(page) = pages.next().await {
        let page = page?;
        groups.extend(page.groups);
        tensors.extend(page.tensors);
    }
    Ok(Some((text::described_json(&groups, &tensors), text::described(&groups, &tensors))))
}

async fn load(rpc: &mut Rpc, request: pb::LoadRequest, out: Out) -> Result<Answered, Status> {
    let bar = progress::bar("loading", 0, out.is_json());
    let mut steps = rpc.load(request).await?.into_inner();
    while let Some(step) = steps.next().await {
        let step = step?;
        bar.set_length(step.total_bytes);
        bar.set_position(step.done_bytes);
        if let Some(done) = step.done {
            bar.finish_and_clear();
            return Ok(Some((
                text::loaded_json(&done, step.total_bytes),
                text::loaded(&done, step.total_bytes),
            )));
        }
    }
    Err(Status::unavailable("the service ended before the load did"))
}
