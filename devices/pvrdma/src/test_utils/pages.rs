//! Doorbell pages that are memory.

use std::collections::HashMap;
use std::sync::Arc;

use device_model::doorbell::{Bell, DoorbellPage};
use parking_lot::Mutex;
use pvrdma_spec::PAGE_SIZE;

/// The pages that are memory now, by their offset in the BAR. A write is done under the lock, as a CPU's is in one piece.
#[derive(Clone, Default)]
pub(super) struct SharedPages(Arc<Mutex<HashMap<u64, Page>>>);

struct Page {
    words: Arc<Mutex<HashMap<u64, u32>>>,
    resting: bool,
    bell: Arc<dyn Bell>,
}

impl SharedPages {
    /// Makes a page memory.
    pub(super) fn share(&self, offset: u64, bell: Arc<dyn Bell>) -> Box<dyn DoorbellPage> {
        let words = Arc::default();
        let page = Page { words: Arc::clone(&words), resting: false, bell };
        assert!(self.0.lock().insert(offset, page).is_none(), "The page is memory already");
        Box::new(Shared { pages: self.clone(), offset, words })
    }

    /// Writes to a page; `false` when it is one of doorbells.
    pub(super) fn store(&self, offset: u64, value: u32) -> bool {
        let mut pages = self.0.lock();
        let Some(page) = pages.get_mut(&(offset / PAGE_SIZE * PAGE_SIZE)) else { return false };
        if std::mem::take(&mut page.resting) {
            page.bell.ring();
        }
        page.words.lock().insert(offset % PAGE_SIZE, value);
        true
    }
}

struct Shared {
    pages: SharedPages,
    offset: u64,
    words: Arc<Mutex<HashMap<u64, u32>>>,
}

impl DoorbellPage for Shared {
    fn load(&self, offset: u64) -> u32 {
        self.words.lock().get(&offset).copied().unwrap_or(0)
    }

    fn rest(&self) {
        if let Some(page) = self.pages.0.lock().get_mut(&self.offset) {
            page.resting = true;
        }
    }

    fn is_awake(&self) -> bool {
        self.pages.0.lock().get(&self.offset).is_none_or(|page| !page.resting)
    }

    fn retire(&self) {
        self.pages.0.lock().remove(&self.offset);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.retire();
    }
}
