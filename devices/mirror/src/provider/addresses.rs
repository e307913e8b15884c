//! Address handles, made when a datagram needs one and kept for the next.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use device_model::time::Instant;
use verbs::{AddressVector, PdId};

/// Entries after which the cache starts anew. Work requests keep the handles they use.
const CAPACITY: usize = 1024;
/// How long an address that did not resolve is not tried again: each try waits for the network.
const RETRY: Duration = Duration::from_secs(1);

/// What is known of an address.
enum Entry<A> {
    Resolved(Arc<A>),
    /// Not before this time.
    Unresolved(Instant),
}

/// Address handles by protection domain and path.
pub(super) struct AddressCache<A>(HashMap<(PdId, Key), Entry<A>>);

/// The part of a path that makes a handle; the host finds out the Ethernet address itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    dgid: [u8; 16],
    sgid_index: u8,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
    sl: u8,
}

impl From<&AddressVector> for Key {
    fn from(av: &AddressVector) -> Self {
        let AddressVector { dgid, sgid_index, flow_label, hop_limit, traffic_class, sl, dmac: _ } = *av;
        Self { dgid: dgid.0, sgid_index, flow_label, hop_limit, traffic_class, sl }
    }
}

impl<A> AddressCache<A> {
    pub(super) fn new() -> Self {
        Self(HashMap::new())
    }

    /// The handle of a path, which `resolve` makes when there is none.
    pub(super) fn get(
        &mut self,
        now: Instant,
        pd: PdId,
        av: &AddressVector,
        resolve: impl FnOnce() -> Option<A>,
    ) -> Option<Arc<A>> {
        let key = (pd, Key::from(av));
        match self.0.get(&key) {
            Some(Entry::Resolved(ah)) => return Some(Arc::clone(ah)),
            Some(Entry::Unresolved(until)) if *until > now => return None,
            _ => {}
        }
        if self.0.len() >= CAPACITY {
            self.0.clear();
        }
        let ah = resolve().map(Arc::new);
        let entry = ah.clone().map_or_else(|| Entry::Unresolved(now + RETRY), Entry::Resolved);
        self.0.insert(key, entry);
        ah
    }

    /// Drops the handles of a protection domain.
    pub(super) fn forget(&mut self, pd: PdId) {
        self.0.retain(|(of, _), _| *of != pd);
    }

    /// Drops all handles.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
