//! A whole model, through the service and without it.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use spoc_cache::load::{LoadOptions, load_model};
use spoc_cache::{Pump, PumpOptions};
use spoc_client::pb;
use spoc_io::{IoMode, OpenOptions, open_model};
use spoc_measurements::device::DeviceArgs;

use crate::program::Place;
use crate::{Args, judge, tell};

pub fn measure(args: &Args, place: &Place) -> Result<()> {
    let service = place.serve(false)?;
    let client = place.client()?;
    place.register(&client, "large", "")?;
    let device = DeviceArgs { backend: args.backend.clone(), index: 0 }.open()?;
    let mut options = PumpOptions::new(IoMode::Auto, 64 << 20)?;
    options.reader.check_threads = 2;
    let pump: Arc<Pump> = Pump::start(&device, options)?;
    let model = open_model(&place.path("large.safetensors"), &OpenOptions::default())?;
    let gigabytes = model.tensor_bytes() as f64 / 1e9;
    let options = LoadOptions { exportable: true, ..LoadOptions::default() };
    let (mut own, mut through, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=args.rounds {
        let began = Instant::now();
        let loaded = load_model(&pump, &model, &options)?;
        let alone = gigabytes / began.elapsed().as_secs_f64();
        drop(loaded);
        let began = Instant::now();
        let image = client.load("large", |_, _| {})?.image;
        let served = gigabytes / began.elapsed().as_secs_f64();
        client.wait(async |client| client.evict(pb::evict_request::What::Image(image)).await)?;
        // The first finds caches cold, rings unpinned, and pages that nobody has used yet.
        if round > 0 {
            own.push(alone);
            through.push(served);
            ratios.push(served / alone);
        }
    }
    tell("load in this process", "GB/s", &own)?;
    tell("load through the service", "GB/s", &through)?;
    let ratio = tell("of the same round, service over process", "1", &ratios)?;
    judge("load through the service over in-process", ratio, ratio >= 0.98, "≥ 0.98");
    drop(service);
    Ok(())
}
