//! Doorbells as KVM ioeventfds that follow the function's BARs.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use device_model::doorbell::{Bell, Doorbell, DoorbellError, DoorbellPage, Doorbells};
use kvm_ioctls::{IoEventAddress, NoDatamatch};
use pci::BarListener;

use super::doorbell_pages::{DoorbellPages, Page, SharedPage};
use crate::kvm::{VmWithRam, event_fd};

/// BAR registers of a function.
const BARS: usize = 6;

#[derive(Default)]
struct State {
    bases: [Option<u64>; BARS],
    bells: HashMap<Doorbell, Arc<dyn Bell>>,
    /// Pages that are memory, by BAR and offset.
    pages: Vec<(u8, u64, Weak<Page>)>,
}

/// The doorbells of one function. A doorbell without a value catches writes of any width at its offset.
pub struct KvmDoorbells {
    vm: Arc<VmWithRam>,
    pages: Arc<DoorbellPages>,
    state: Mutex<State>,
}

impl KvmDoorbells {
    /// A registry for a function whose BARs are not decoded yet.
    pub fn new(vm: Arc<VmWithRam>, pages: Arc<DoorbellPages>) -> Arc<Self> {
        Arc::new(Self { vm, pages, state: Mutex::default() })
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

    fn share(&self, bar: u8, offset: u64, bell: Arc<dyn Bell>) -> Option<Box<dyn DoorbellPage>> {
        let mut state = self.lock();
        let base = (*state.bases.get(usize::from(bar))?)?;
        let page = self.pages.add(bell)?;
        if !page.place(Some(base.checked_add(offset)?)) {
            return None;
        }
        state.pages.retain(|(.., page)| page.strong_count() > 0);
        state.pages.push((bar, offset, Arc::downgrade(&page)));
        Some(Box::new(SharedPage(page)))
    }
}

impl BarListener for KvmDoorbells {
    fn bar_moved(&self, bar: u8, base: Option<u64>) {
        let mut state = self.lock();
        let State { bases, bells, pages } = &mut *state;
        let Some(slot) = bases.get_mut(usize::from(bar)) else { return };
        let old = std::mem::replace(slot, base);
        for (_, offset, page) in pages.iter().filter(|(of, ..)| *of == bar) {
            if let Some(page) = page.upgrade() {
                page.place(base.and_then(|base| base.checked_add(*offset)));
            }
        }
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
        let doorbells = KvmDoorbells::new(Arc::clone(&guest.vm), Arc::clone(&guest.pages));
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
    fn a_page_that_is_memory_stops_no_cpu_and_rings_when_it_rests() {
        let store = |asm: Asm, value| asm.store32(OLD + 0x1004, value);
        let mut asm = Asm::new();
        asm = store(asm, 1).out8(1, 0);
        for value in 2..1002 {
            asm = store(asm, value);
        }
        asm = store(asm.out8(1, 0), 7).out8(1, 0);
        asm = store(asm, 8).store32(NEW + 0x1004, 9).out8(1, 0).store32(NEW + 0x1004, 10).exit(0);
        let Some(mut guest) = TinyGuest::new(&asm.code()) else { return };
        let doorbells = KvmDoorbells::new(Arc::clone(&guest.vm), Arc::clone(&guest.pages));
        doorbells.bar_moved(1, Some(OLD));
        let bell = bell();
        assert_eq!(guest.step(), Step::Store(OLD + 0x1004, vec![1, 0, 0, 0]));
        let out = Step::Out(1, vec![0]);
        assert_eq!(guest.step(), out);

        let page = doorbells.share(1, 0x1000, bell.clone()).unwrap();
        let before = guest.exits();
        assert_eq!(guest.step(), out);
        let exits = guest.exits().zip(before).map(|(after, before)| after - before);
        assert!(exits.is_none_or(|exits| exits < 100), "{exits:?} exits for 1000 stores");
        assert_eq!((page.load(4), page.load(0), page.load(0x1000), bell.clear()), (1001, 0, 0, false));

        page.rest();
        assert!(!page.is_awake());
        assert_eq!(guest.step(), Step::Wake);
        assert!(bell.clear() && page.is_awake());
        assert_eq!(guest.step(), out, "the store is done the second time");
        assert_eq!(page.load(4), 7);

        doorbells.bar_moved(1, Some(NEW));
        assert_eq!(guest.step(), Step::Store(OLD + 0x1004, vec![8, 0, 0, 0]), "nothing is left there");
        assert_eq!(guest.step(), out);
        assert_eq!(page.load(4), 9, "the page goes where its BAR goes");
        page.retire();
        assert_eq!(guest.step(), Step::Store(NEW + 0x1004, vec![10, 0, 0, 0]));
        assert_eq!(page.load(4), 9);
        assert_eq!(guest.step(), Step::Exit(0));
    }

    #[test]
    fn a_cpu_that_failed_to_write_to_a_page_that_is_gone_now_tries_again() {
        let code = Asm::new().store32(OLD + 0x1004, 1).exit(0).code();
        let Some(mut guest) = TinyGuest::new(&code) else { return };
        let doorbells = KvmDoorbells::new(Arc::clone(&guest.vm), Arc::clone(&guest.pages));
        doorbells.bar_moved(1, Some(OLD));
        let page = doorbells.share(1, 0x1000, bell()).unwrap();
        page.rest();
        let before = guest.pages.wakes();
        assert!(guest.run_into_fault());
        page.retire();
        drop(page);
        assert!(guest.pages.wake(before));
        assert!(!guest.pages.wake(guest.pages.wakes()), "another fault would have no reason");
        assert_eq!(guest.step(), Step::Store(OLD + 0x1004, vec![1, 0, 0, 0]));
        assert_eq!(guest.step(), Step::Exit(0));
    }

    #[test]
    fn unregistered_and_dropped_doorbells_are_gone() {
        let code = Asm::new().store32(OLD, 1).store32(OLD + 4, 1).exit(0).code();
        let Some(mut guest) = TinyGuest::new(&code) else { return };
        let bell = bell();
        let first = Doorbell { bar: 0, offset: 0, value: Some(1) };
        let doorbells = KvmDoorbells::new(Arc::clone(&guest.vm), Arc::clone(&guest.pages));
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
