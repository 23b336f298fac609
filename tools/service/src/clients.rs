//! Requests in flight, by the process that sent them: one client cannot take every place.

use crate::access::Peer;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Counts = HashMap<(u32, u32), u32>;

/// How many requests each process has in flight. Processes that cannot be seen from here count by their user.
#[derive(Clone, Debug, Default)]
pub struct Clients(Arc<Mutex<Counts>>);

fn lock(counts: &Mutex<Counts>) -> MutexGuard<'_, Counts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request in flight, until it is dropped.
#[derive(Debug)]
pub struct Place {
    clients: Clients,
    key: (u32, u32),
}

impl Clients {
    /// Counts a request more.
    ///
    /// # Errors
    /// `quota_exceeded` for more than `most`.
    pub fn enter(&self, peer: Peer, most: u32) -> Result<Place> {
        let key = (peer.uid, peer.pid);
        let mut counts = lock(&self.0);
        let count = counts.entry(key).or_default();
        if *count >= most {
            let message = format!("process {} has {most} requests in flight, as many as it may", peer.pid);
            return Err(Error::new("quota_exceeded", message));
        }
        *count += 1;
        Ok(Place { clients: self.clone(), key })
    }

    #[cfg(test)]
    fn known(&self) -> usize {
        lock(&self.0).len()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = lock(&self.clients.0);
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_places_of_its_own_and_gone_ones_leave_nothing() {
        let clients = Clients::default();
        let peer = |pid| Peer { pid, uid: 1, gid: 1 };
        let mut places: Vec<Place> = (0..3).map(|_| clients.enter(peer(7), 3).expect("a place")).collect();
        let error = clients.enter(peer(7), 3).expect_err("full");
        assert!(error.kind() == "quota_exceeded" && error.message().contains("process 7"), "{error}");
        let other = clients.enter(peer(8), 3).expect("another's");
        places.pop();
        places.push(clients.enter(peer(7), 3).expect("free again"));
        drop((places, other));
        assert_eq!(clients.known(), 0);
    }
}
