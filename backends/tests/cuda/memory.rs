//! Device memory: mapped and plain, freed without anybody waiting, lent.

use std::fs::File;
use std::os::fd::OwnedFd;

use spoc_driver::{DeviceSelector, ErrorKind, Exported, SegmentOptions};

use super::{Bench, Held, MIB, at_once, filled, on_every_device, pattern, read, whole};

pub const LENDABLE: SegmentOptions = SegmentOptions { exportable: true };

#[test]
fn segments_from_a_granule_on_are_mapped() {
    on_every_device(|bench| {
        let granule = bench.device.limits().export_granule_bytes;
        let allocate = |len: u64| {
            let segment = bench.device.allocate(len).unwrap();
            assert_eq!(segment.address().unwrap() % bench.device.limits().address_align_bytes, 0);
            segment.write(len - 1, &[7]).unwrap();
        };
        if granule > 1 {
            assert_eq!(bench.added(|c| c.mapped_segments, || allocate(granule)), 1);
            assert_eq!(bench.added(|c| c.mapped_segments, || allocate(3 * granule + 5)), 1);
        }
        assert_eq!(bench.added(|c| c.plain_segments, || allocate(1)), 1);
        assert_eq!(bench.counters.read().plain_for_want_of_mapping, 0);
    });
}

/// A write to the first byte past one mapping would be a fault; up to its end all is ours.
#[test]
fn mapped_segments_are_whole() {
    on_every_device(|bench| {
        let len = 5 * MIB + 3;
        let segment = bench.device.allocate(len as u64).unwrap();
        segment.write(0, &pattern(len, 1)).unwrap();
        assert!(read(&segment) == pattern(len, 1));
    });
}

#[test]
fn freed_memory_is_free_again() {
    on_every_device(|bench| {
        let before = bench.device.memory().unwrap().free_bytes;
        for len in [256 << 20, MIB as u64] {
            drop(bench.device.allocate(len).unwrap());
        }
        let after = bench.device.memory().unwrap().free_bytes;
        // Others use the device, too: what matters is that these 257 MiB are not gone.
        assert!(after + (128 << 20) > before, "{before} bytes were free, {after} are");
    });
}

/// The thread that feeds a device drops what it used while the device is busy, and must not wait for it.
#[test]
fn dropping_waits_for_nothing_while_the_device_is_busy() {
    on_every_device(|bench| {
        let (small, large) = (bench.device.allocate(64).unwrap(), bench.device.allocate(64 << 20).unwrap());
        let pinned = bench.device.alloc_pinned(4096).unwrap();
        let (event, other) = (bench.device.create_event().unwrap(), bench.stream());
        let memory = filled(MIB, 1);
        let (_pin, target) = (bench.device.pin(&memory).unwrap(), bench.device.allocate(MIB as u64).unwrap());
        let feeding = bench.stream();
        let copy = |what: &str| {
            at_once(what, || feeding.copy_to_device(memory.clone(), &[whole(&target, MIB)]).unwrap());
            at_once("and waiting for it", || feeding.synchronize().unwrap());
        };
        let held = Held::on(bench);
        copy("a copy");
        at_once("freeing a mapped segment", || drop(large));
        at_once("allocating a mapped one", || bench.device.allocate(8 << 20).unwrap());
        at_once("freeing a plain segment", || drop(small));
        copy("a copy, while the plain segment is freed");
        at_once("asking for memory", || bench.device.memory().unwrap());
        at_once("freeing pinned memory", || drop(pinned));
        copy("a copy, while pinned memory is freed");
        at_once("destroying an event and a stream", || drop((event, other)));
        at_once("making an event and a stream", || (bench.device.create_event().unwrap(), bench.stream()));
        held.open();
    });
}

#[test]
fn more_than_there_is_is_refused_with_figures() {
    on_every_device(|bench| {
        let memory = bench.device.memory().unwrap();
        let mut taken = Vec::new();
        // In quarters: a plain refusal of all of it would prove nothing.
        let error = loop {
            match bench.device.allocate(memory.total_bytes / 4) {
                Ok(segment) => taken.push(segment),
                Err(error) => break error,
            }
            assert!(taken.len() <= 4, "more than there is");
        };
        match *error.kind() {
            ErrorKind::OutOfDeviceMemory { need_bytes, have_bytes } => {
                assert!(need_bytes >= memory.total_bytes / 4, "{error}");
                assert!(have_bytes < need_bytes, "{error}");
            }
            _ => panic!("{error}"),
        }
        drop(taken);
        drop(bench.device.allocate(memory.free_bytes / 2).unwrap());
    });
}

#[test]
fn only_what_is_made_to_be_lent_is_lent_and_imports_are_not_lent_on() {
    on_every_device(|bench| {
        if !bench.device.capabilities().export_memory.is_available() {
            return;
        }
        let refused = bench.device.allocate(8 << 20).unwrap().export().unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::InvalidArgument);
        assert!(refused.to_string().contains("not allocated as exportable"), "{refused}");
        let segment = bench.device.allocate_with(100, LENDABLE).unwrap();
        segment.write(0, &pattern(100, 3)).unwrap();
        let other = Bench::open(bench.device.info().index);
        let imported = other.device.import(segment.export().unwrap()).unwrap();
        assert_eq!(read(&imported), pattern(100, 3));
        assert_eq!(*imported.export().unwrap_err().kind(), ErrorKind::InvalidArgument);
        // Twice in one process is fine, and at two addresses.
        let again = other.device.import(segment.export().unwrap()).unwrap();
        assert_ne!(again.address(), imported.address());
        drop((segment, imported));
        assert_eq!(read(&again), pattern(100, 3));
    });
}

#[test]
fn lies_about_lent_memory_are_refused_and_harm_nothing() {
    on_every_device(|bench| {
        if !bench.device.capabilities().import_memory.is_available() {
            return;
        }
        let granule = bench.device.limits().export_granule_bytes;
        let segment = bench.device.allocate_with(2 * granule, LENDABLE).unwrap();
        let lie = |change: &dyn Fn(&mut Exported)| {
            let mut exported = segment.export().unwrap();
            change(&mut exported);
            let error = bench.device.import(exported).unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::InvalidArgument, "{error}");
        };
        lie(&|exported| exported.allocation_bytes += granule);
        lie(&|exported| exported.allocation_bytes += 1);
        lie(&|exported| {
            exported.allocation_bytes = granule;
            exported.len_bytes = granule;
        });
        lie(&|exported| exported.descriptor = OwnedFd::from(File::open("/dev/null").unwrap()));
        lie(&|exported| exported.descriptor = OwnedFd::from(File::open("/proc/self/exe").unwrap()));
        let honest = bench.device.import(segment.export().unwrap()).unwrap();
        honest.write(0, b"fine").unwrap();
        assert_eq!(read(&segment)[..4], *b"fine");
        let selector = DeviceSelector::uuid(spoc_driver::BackendKind::Cuda, segment.export().unwrap().device);
        assert!(bench.driver.open(&selector).unwrap().is(&bench.device));
    });
}
