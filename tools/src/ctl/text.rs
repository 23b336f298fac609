//! Answers, as JSON and as lines.

use serde_json::{Value, json};
use spoc_proto::v1 as pb;

use crate::units::{bytes, gb_per_s};

pub fn info_json(info: &pb::GetInfoResponse) -> Value {
    let devices = info.devices.iter().map(|device| {
        json!({"uuid": device.uuid, "backend": device.backend, "name": device.name,
            "memory_bytes": device.memory_bytes, "free_bytes": device.free_bytes,
            "can_lend": device.can_lend, "cannot_lend_because": device.cannot_lend_because,
            "read_only_enforced": device.read_only_enforced})
    });
    json!({"version": info.version, "instance": info.instance, "draining": info.is_draining, "parking": info.parking,
        "devices": devices.collect::<Vec<_>>(),
        "arenas": info.arenas.iter().map(arena_json).collect::<Vec<_>>()})
}

pub fn info(info: &pb::GetInfoResponse) -> Vec<String> {
    let mut lines = vec![format!(
        "spoc {} (instance {}){}",
        info.version,
        info.instance,
        if info.is_draining { ", draining" } else { "" }
    )];
    for device in &info.devices {
        let lends =
            if device.can_lend { "lends memory".to_owned() } else { device.cannot_lend_because.clone() };
        lines.push(format!(
            "device {} {} {}: {} of {} free; {lends}",
            device.backend,
            device.uuid,
            device.name,
            bytes(device.free_bytes),
            bytes(device.memory_bytes)
        ));
    }
    lines.extend(arenas(&info.arenas));
    lines
}

pub fn model_json(model: &pb::Model) -> Value {
    json!({"name": model.name, "source": model.source, "arena": model.arena, "groups": model.groups,
        "tensors": model.tensors, "bytes": model.bytes, "resident_bytes": model.resident_bytes, "leases": model.leases})
}

pub fn models(models: &[pb::Model]) -> Vec<String> {
    let line = |model: &pb::Model| {
        let place = if model.arena.is_empty() {
            "as a whole".to_owned()
        } else {
            format!("in arena {}", model.arena)
        };
        format!(
            "{}: {} of {} resident, {} groups, {place}, {} leases; from {}",
            model.name,
            bytes(model.resident_bytes),
            bytes(model.bytes),
            model.groups,
            model.leases,
            model.source
        )
    };
    none("no models", models.iter().map(line).collect())
}

fn none(what: &str, lines: Vec<String>) -> Vec<String> {
    if lines.is_empty() { vec![what.to_owned()] } else { lines }
}

pub fn described_json(groups: &[pb::Group], tensors: &[pb::Tensor]) -> Value {
    let groups = groups
        .iter()
        .map(|group| json!({"index": group.index, "name": group.name, "slot_bytes": group.slot_bytes}));
    let tensors = tensors.iter().map(|tensor| {
        json!({"name": tensor.name, "dtype": tensor.dtype, "shape": tensor.shape, "bytes": tensor.bytes,
            "group": tensor.group, "group_offset": tensor.group_offset})
    });
    json!({"groups": groups.collect::<Vec<_>>(), "tensors": tensors.collect::<Vec<_>>()})
}

pub fn described(groups: &[pb::Group], tensors: &[pb::Tensor]) -> Vec<String> {
    let count = |index| tensors.iter().filter(|tensor| tensor.group == index).count();
    let line = |group: &pb::Group| {
        format!(
            "{:>6}  {:>10}  {} tensors  {}",
            group.index,
            bytes(group.slot_bytes),
            count(group.index),
            group.name
        )
    };
    groups.iter().map(line).collect()
}

pub fn image_json(image: &pb::Image) -> Value {
    json!({"name": image.name, "device": image.device, "state": image.state, "bytes": image.bytes,
        "leases": image.leases, "model": image.model, "pinned": image.pinned, "lineage": image.lineage})
}

pub fn images(images: &[pb::Image]) -> Vec<String> {
    let line = |image: &pb::Image| {
        let pinned = if image.pinned { ", pinned" } else { "" };
        format!("{}: {}, {}, {} leases{pinned}", image.name, image.state, bytes(image.bytes), image.leases)
    };
    none("no images", images.iter().map(line).collect())
}

pub fn loaded_json(done: &pb::LoadDone, total: u64) -> Value {
    json!({"image": done.image, "bytes": total, "was_resident": done.was_resident, "prepare_seconds": done.prepare_s,
        "seconds": done.stream_s, "gb_per_s": gb_per_s(total, done.stream_s), "io_path": done.io_path,
        "io_path_reason": done.io_reason})
}

pub fn loaded(done: &pb::LoadDone, total: u64) -> Vec<String> {
    if done.was_resident {
        return vec![format!("{}: resident already", done.image)];
    }
    let rate = gb_per_s(total, done.stream_s);
    vec![
        format!("{}: {} in {:.3} s, {rate:.2} GB/s", done.image, bytes(total), done.stream_s),
        format!("read by {}: {}", done.io_path, done.io_reason),
    ]
}

pub fn arena_json(arena: &pb::Arena) -> Value {
    let classes =
        arena.classes.iter().map(|class| json!({"slots": class.slots, "slot_bytes": class.slot_bytes}));
    json!({"name": arena.name, "device": arena.device, "classes": classes.collect::<Vec<_>>(), "bytes": arena.bytes,
        "policy": arena.policy, "free": arena.free, "loading": arena.loading, "resident": arena.resident,
        "leased": arena.leased, "draining": arena.draining, "failed": arena.failed})
}

pub fn arenas(arenas: &[pb::Arena]) -> Vec<String> {
    let line = |arena: &pb::Arena| {
        let classes =
            arena.classes.iter().map(|class| format!("{} × {}", class.slots, bytes(class.slot_bytes)));
        format!(
            "arena {}: {}, {}; {} free, {} loading, {} resident, {} leased, {} draining, {} failed",
            arena.name,
            classes.collect::<Vec<_>>().join(" + "),
            arena.policy,
            arena.free,
            arena.loading,
            arena.resident,
            arena.leased,
            arena.draining,
            arena.failed
        )
    };
    none("no arenas", arenas.iter().map(line).collect())
}

fn session_json(session: &pb::Session) -> Value {
    json!({"name": session.name, "pid": session.pid, "uid": session.uid, "leases": session.leases,
        "held_bytes": session.held_bytes, "state": session.state})
}

pub fn stats_json(stats: &pb::GetStatsResponse) -> Value {
    json!({"uptime_seconds": uptime(stats), "counters": stats.counters,
        "arenas": stats.arenas.iter().map(arena_json).collect::<Vec<_>>(),
        "sessions": stats.sessions.iter().map(session_json).collect::<Vec<_>>()})
}

#[allow(clippy::cast_precision_loss)] // for people
fn uptime(stats: &pb::GetStatsResponse) -> f64 {
    stats.uptime_ms as f64 / 1000.0
}

pub fn stats(stats: &pb::GetStatsResponse) -> Vec<String> {
    let mut lines = vec![format!("up {:.0} s", uptime(stats))];
    lines.extend(arenas(&stats.arenas));
    for session in &stats.sessions {
        lines.push(format!(
            "session {:?} of process {} (user {}): {}, {} leases, {}",
            session.name,
            session.pid,
            session.uid,
            session.state,
            session.leases,
            bytes(session.held_bytes)
        ));
    }
    let mut counters: Vec<_> = stats.counters.iter().filter(|(_, count)| **count > 0).collect();
    counters.sort_unstable();
    lines.extend(counters.iter().map(|(name, count)| format!("{name} {count}")));
    lines
}

pub fn event_json(event: &pb::Event) -> Value {
    json!({"time_ns": event.time_ns, "kind": event.kind, "cause": event.cause, "model": event.model,
        "device": event.device, "detail": event.detail, "dropped": event.dropped})
}

#[allow(clippy::cast_precision_loss)] // for people
pub fn event(event: &pb::Event) -> String {
    let seconds = event.time_ns as f64 / 1e9;
    let parts = [event.kind.as_str(), event.model.as_str(), event.detail.as_str()];
    let told: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    format!("{seconds:10.3}  {}", told.join("  "))
}
