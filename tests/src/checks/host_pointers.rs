//! The vector's host memory itself as a device's buffer.

use std::thread;
use std::time::Duration;

use spoc_driver::{
    BackendKind, Elements, HostBuffer, HostLink, HostMemoryOptions, HostSlice, Location, Vector,
};

use crate::{Subject, refused};

/// An attached vector, or nothing where the device takes none: then the refusal was checked.
fn attached(subject: &Subject, values: &[i32]) -> Option<Vector<i32>> {
    let mut vector = Vector::from_slice(values).unwrap();
    let outcome = vector.attach(&subject.device);
    if subject.device.capabilities().host_buffer.is_available() {
        outcome.unwrap();
        return Some(vector);
    }
    let error = outcome.unwrap_err();
    let expected = match subject.backend.id().kind {
        BackendKind::OpenCl => "not_cpu_device",
        _ => "unsupported",
    };
    assert_eq!(error.kind().as_str(), expected, "{error}");
    assert_eq!(vector.location(), Location::Cpu, "a refused attach changed the location");
    assert!(!vector.has_buffer(&subject.device));
    assert_eq!(subject.device.memory_in_use(), 0);
    vector.to_device(&subject.device).unwrap();
    assert_eq!(vector.host_link(&subject.device), Some(HostLink::Separate));
    None
}

/// Taken where the device can, refused by the reason that applies elsewhere; what the buffer is can be asked.
pub fn rule_23_attaching_is_taken_or_refused_by_reason(subject: &Subject) {
    let Some(mut vector) = attached(subject, &[1; 1024]) else { return };
    let link = match subject.backend.id().kind {
        BackendKind::Native | BackendKind::Interpreter => HostLink::HostStorage,
        _ => HostLink::HostPtr,
    };
    assert_eq!(vector.host_link(&subject.device), Some(link));
    assert_eq!(vector.host_link(&subject.other_device()), None);
    assert_eq!(vector.location(), Location::Both);
    refused(vector.attach(&subject.device), "already_attached");
    let mut separate = Vector::from_slice(&[1; 64]).unwrap();
    separate.to_device(&subject.device).unwrap();
    refused(separate.attach(&subject.device), "already_attached");
    let mut only = Vector::<i32>::device_only(&subject.device, 64).unwrap();
    refused(only.attach(&subject.device), "wrong_location");
    let mut elsewhere = Vector::<i32>::device_only(&subject.other_device(), 64).unwrap();
    refused(elsewhere.attach(&subject.device), "wrong_location");
}

/// The bytes of the buffer count, although they are no device memory.
pub fn rule_06_memory_in_use_counts_host_pointer_buffers(subject: &Subject) {
    let Some(mut vector) = attached(subject, &[1; 1024]) else { return };
    assert_eq!(subject.device.memory_in_use(), 4096);
    vector.free_buffer(&subject.device).unwrap();
    assert_eq!(subject.device.memory_in_use(), 0);
    assert_eq!(vector.to_vec().unwrap(), [1; 1024]);
}

/// What the host holds at attach is what the device sees, what the device writes is what the host sees next,
/// and what the host writes after that is seen once it is published, by hand or by a transfer.
pub fn rule_23_acquire_and_publish_carry_writes_across(subject: &Subject) {
    let stream = subject.stream();
    let Some(mut vector) = attached(subject, &[1; 1024]) else { return };
    let device = &subject.device;
    let on_device = |vector: &Vector<i32>| {
        let mut read = vec![0; 1024];
        vector.copy_to_host(0, &mut read).unwrap();
        read
    };
    assert_eq!(on_device(&vector), [1; 1024]);
    vector.copy_to_device_on(&stream, 8, Elements(vec![2; 8])).unwrap();
    assert_eq!(vector.location(), Location::StaleCpu);
    vector.acquire_device_writes(device).unwrap();
    assert_eq!(vector.location(), Location::Both);
    assert_eq!(vector.as_slice().unwrap()[..24], [[1; 8], [2; 8], [1; 8]].concat());
    vector.acquire_device_writes(device).unwrap();
    vector.as_mut_slice().unwrap()[..8].fill(3);
    assert_eq!(vector.location(), Location::StaleGpu);
    refused(vector.copy_to_host(0, &mut [0; 8]), "wrong_location");
    vector.publish_host_writes(device).unwrap();
    assert_eq!(vector.location(), Location::Both);
    assert_eq!(on_device(&vector)[..24], [[3; 8], [2; 8], [1; 8]].concat());
    // Without asking: reading acquires, and moving publishes.
    vector.copy_to_device(0, &[4; 8]).unwrap();
    assert_eq!(vector.get(0).unwrap(), 4);
    vector.set(1, 5).unwrap();
    vector.to_device(device).unwrap();
    assert_eq!(on_device(&vector)[..3], [4, 5, 4]);
    let other = subject.other_device();
    refused(vector.acquire_device_writes(&other), "wrong_location");
    refused(vector.publish_host_writes(&other), "wrong_location");
    let mut separate = Vector::from_slice(&[1; 64]).unwrap();
    separate.to_device(device).unwrap();
    refused(separate.acquire_device_writes(device), "wrong_location");
    refused(separate.publish_host_writes(device), "wrong_location");
}

/// Acquiring waits for every stream that uses the vector, non-blocking ones included.
pub fn rule_23_acquire_waits_for_every_stream_that_uses_the_vector(subject: &Subject) {
    let Some(mut vector) = attached(subject, &[1; 64]) else { return };
    for is_read in [false, true] {
        let streams = [subject.free_stream(), subject.stream()];
        for stream in &streams {
            let hold = subject.hold(stream);
            vector.copy_to_device_on(stream, 0, Elements(vec![7; 32])).unwrap();
            thread::scope(|scope| {
                let vector = &mut vector;
                let user = scope.spawn(move || match is_read {
                    true => assert_eq!(vector.to_vec().unwrap()[..32], [7; 32]),
                    false => vector.acquire_device_writes(&vector.home().unwrap()).unwrap(),
                });
                if hold.is_certain() {
                    thread::sleep(Duration::from_millis(10));
                    assert!(!user.is_finished(), "did not wait (read: {is_read})");
                }
                hold.open();
                user.join().unwrap();
            });
            assert_eq!(vector.as_slice().unwrap()[..32], [7; 32]);
            vector.as_mut_slice().unwrap().fill(1);
            vector.publish_host_writes(&subject.device).unwrap();
        }
    }
}

/// The buffer keeps the memory: the vector may go while copies are pending.
pub fn rule_23_the_buffer_keeps_the_memory(subject: &Subject) {
    let stream = subject.free_stream();
    let Some(mut vector) = attached(subject, &[1; 1024]) else { return };
    let hold = subject.hold(&stream);
    vector.copy_to_device_on(&stream, 0, Elements(vec![2; 512])).unwrap();
    let read = vector.copy_to_host_on(&stream, 0, Elements(vec![0; 1024])).unwrap();
    if hold.is_certain() {
        refused(vector.free_buffer(&subject.device), "in_flight");
    }
    drop(vector);
    hold.open();
    assert_eq!(read.wait().unwrap().0, [[2; 512], [1; 512]].concat());
    stream.synchronize().unwrap();
    assert_eq!(subject.device.memory_in_use(), 0);
}

/// A first byte where the device would silently make a copy of its own is refused.
pub fn rule_23_misaligned_memory_is_refused(subject: &Subject) {
    if attached(subject, &[1; 64]).is_none() {
        return;
    }
    let memory = HostBuffer::allocate(1 << 16, HostMemoryOptions::default()).unwrap();
    let (first, rest) = HostSlice::from(memory).split_at(4096).unwrap();
    let (_, odd) = rest.split_at(8).unwrap();
    let mut aligned = Vector::<i32>::over(first).unwrap();
    aligned.attach(&subject.device).unwrap();
    let mut odd = Vector::<i32>::over(odd).unwrap();
    match odd.attach(&subject.device) {
        // Where the device's memory is the host's, any address serves.
        Ok(()) => assert_eq!(odd.host_link(&subject.device), Some(HostLink::HostStorage)),
        Err(error) => {
            assert_eq!(error.kind().as_str(), "misaligned", "{error}");
            assert!(!odd.has_buffer(&subject.device));
            odd.to_device(&subject.device).unwrap();
        }
    }
}
