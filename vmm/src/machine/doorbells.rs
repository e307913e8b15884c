//! Doorbells as KVM ioeventfds that follow the function's BARs.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device_model::doorbell::{Bell, Doorbell, DoorbellError, Doorbells};
use kvm_ioctls::{IoEventAddress, NoDatamatch};
use pci::BarListener;

use crate::kvm::{VmWithRam, event_fd};

/// BAR registers of a function.
const BARS: usize = 6;

#[derive(Default)]
struct State {
    bases: [Option<u64>; BARS],
    bells: HashMap<Doorbell, Arc<dyn Bell>>,
}

/// The doorbells of one function. A doorbell without a value catches writes of any width at its offset.
pub struct KvmDoorbells {
    vm: Arc<VmWithRam>,
    state: Mutex<State>,
}

impl KvmDoorbells {
    /// A registry for a function whose BARs are not decoded yet.
    pub fn new(vm: Arc<VmWithRam>) -> Arc<Self> {
        Arc::new(Self { vm, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attach(&self, base: u64, doorbell: Doorbell, bell: &dyn Bell) -> Result<(), DoorbellError> {
        let fd = event_fd(bell.as_fd()).map_err(|_| DoorbellError::Exhausted)?;
        let address = IoEventAddress::Mmio(base.wrapping_add(doorbell.offset));
        let result = match doorbell.value {
            Some(value) => self.vm.fd().register_ioevent(&fd, &address, value),
            None => self.vm.fd().register_ioevent(&fd, &address, NoDatamatch),
        };
        result.map_err(|error| match error.errno() {
            libc::EEXIST => DoorbellError::Exists,
            _ => DoorbellError::Exhausted,
        })
    }

    fn detach(&self, base: u64, doorbell: Doorbell, bell: &dyn Bell) {
        // KVM knows an ioeventfd by the event behind the descriptor, so another descriptor of it will do.
        let result = event_fd(bell.as_fd()).map_err(|error| error.to_string()).and_then(|fd| {
            let address = IoEventAddress::Mmio(base.wrapping_add(doorbell.offset));
            let result = match doorbell.value {
                Some(value) => self.vm.fd().unregister_ioevent(&fd, &address, value),
                None => self.vm.fd().unregister_ioevent(&fd, &address, NoDatamatch),
            };
            result.map_err(|error| error.to_string())
        });
        if let Err(error) = result {
            device_model::guest_warn!(?doorbell, error, "Failed to remove a doorbell");
        }
    }
}

impl Doorbells for KvmDoorbells {
    fn register(&self, doorbell: Doorbell, bell: Arc<dyn Bell>) -> Result<(), DoorbellError> {
        let mut state = self.lock();
        let base = *state.bases.get(usize::from(doorbell.bar)).ok_or(DoorbellError::Exhausted)?;
        let Entry::Vacant(entry) = state.bells.entry(doorbell) else { return Err(DoorbellError::Exists) };
        if let Some(base) = base {
            self.attach(base, doorbell, &*bell)?;
        }
        entry.insert(bell);
        Ok(())
    }

    fn unregister(&self, doorbell: Doorbell) {
        let mut state = self.lock();
        if let Some(bell) = state.bells.remove(&doorbell)
            && let Some(base) = state.bases[usize::from(doorbell.bar)]
        {
            self.detach(base, doorbell, &*bell);
        }
    }
}

impl BarListener for KvmDoorbells {
    fn bar_moved(&self, bar: u8, base: Option<u64>) {
        let mut state = self.lock();
        let State { bases, bells } = &mut *state;
        let Some(slot) = bases.get_mut(usize::from(bar)) else { return };
        let old = std::mem::replace(slot, base);
        for (doorbell, bell) in bells.iter().filter(|(doorbell, _)| doorbell.bar == bar) {
            if let Some(old) = old {
                self.detach(old, *doorbell, &**bell);
            }
            // A write that finds no ioeventfd reaches the device's register handler, which does the same work.
            if let Some(new) = base
                && let Err(error) = self.attach(new, *doorbell, &**bell)
            {
                device_model::guest_warn!(?doorbell, %error, "Doorbell falls back to register writes");
            }
        }
    }
}

impl Drop for KvmDoorbells {
    fn drop(&mut self) {
        let state = std::mem::take(&mut *self.lock());
        for (doorbell, bell) in &state.bells {
            if let Some(base) = state.bases[usize::from(doorbell.bar)] {
                self.detach(base, *doorbell, &**bell);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::EventBell;
    use crate::machine::testing::asm::Asm;
    use crate::machine::testing::{Step, TinyGuest};

    const OLD: u64 = 0xc000_0000;
    const NEW: u64 = 0xc010_0000;

    fn bell() -> Arc<EventBell> {
        Arc::new(EventBell::new().unwrap())
    }

    #[test]
    fn matching_writes_ring_and_others_reach_the_device_wherever_the_bar_is() {
        let code = Asm::new()
            .store32(OLD + 8, 5)
            .store32(OLD + 8, 6)
            .store32(OLD + 12, 7)
            .store32(OLD + 8, 5)
            .store32(NEW + 8, 5)
            .exit(0)
            .code();
        let Some(mut guest) = TinyGuest::new(&code) else { return };
        let doorbells = KvmDoorbells::new(Arc::clone(&guest.vm));
        let (five, any) = (bell(), bell());
        let on = |offset, value| Doorbell { bar: 1, offset, value };
        doorbells.register(on(8, Some(5)), five.clone()).unwrap();
        doorbells.bar_moved(1, Some(OLD));
        doorbells.register(on(12, None), any.clone()).unwrap();
        assert_eq!(doorbells.register(on(12, None), any.clone()), Err(DoorbellError::Exists));

        assert_eq!(guest.step(), Step::Store(OLD + 8, vec![6, 0, 0, 0]), "another value is not the doorbell");
        assert!(five.clear());
        doorbells.bar_moved(1, Some(NEW));
        assert_eq!(guest.step(), Step::Store(OLD + 12, vec![7, 0, 0, 0]), "nothing is left at the old place");
        assert_eq!(guest.step(), Step::Store(OLD + 8, vec![5, 0, 0, 0]));
        assert!(!five.clear());
        assert_eq!(guest.step(), Step::Exit(0));
        assert!(five.clear() && !any.clear());
    }

    #[test]
    fn unregistered_and_dropped_doorbells_are_gone() {
        let code = Asm::new().store32(OLD, 1).store32(OLD + 4, 1).exit(0).code();
        let Some(mut guest) = TinyGuest::new(&code) else { return };
        let bell = bell();
        let first = Doorbell { bar: 0, offset: 0, value: Some(1) };
        let doorbells = KvmDoorbells::new(Arc::clone(&guest.vm));
        doorbells.bar_moved(0, Some(OLD));
        doorbells.register(first, bell.clone()).unwrap();
        doorbells.register(Doorbell { offset: 4, ..first }, bell.clone()).unwrap();
        doorbells.unregister(first);
        assert_eq!(guest.step(), Step::Store(OLD, vec![1, 0, 0, 0]));
        drop(doorbells);
        assert_eq!(guest.step(), Step::Store(OLD + 4, vec![1, 0, 0, 0]));
        assert!(!bell.clear());
    }
}
