//! Tables of numbered objects.

/// Objects by handle.
///
/// A freed handle is reused as late as possible: the guest may still hold completions and events that name it.
#[derive(Debug)]
pub(crate) struct Table<T> {
    /// Slots used so far; grows up to `limit`.
    slots: Vec<Option<Box<T>>>,
    first: u32,
    limit: u32,
    /// Where to look for a free slot once all have been used.
    cursor: u32,
    live: u32,
}

impl<T> Table<T> {
    /// An empty table of the handles from `first` up to and without `end`.
    pub(crate) const fn new(first: u32, end: u32) -> Self {
        Self { slots: Vec::new(), first, limit: end.saturating_sub(first), cursor: 0, live: 0 }
    }

    /// The handle that the next object gets, or `None` when the table is full.
    pub(crate) fn vacant(&self) -> Option<u32> {
        let used = self.slots.len() as u32;
        if self.live == self.limit {
            return None;
        }
        if used < self.limit {
            return Some(self.first + used);
        }
        let free = |index: &u32| self.slots.get(*index as usize).is_some_and(Option::is_none);
        (self.cursor..used).chain(0..self.cursor).find(free).map(|index| self.first + index)
    }

    /// Puts an object at the handle that [`Table::vacant`] gave.
    pub(crate) fn insert(&mut self, handle: u32, object: T) {
        let Some(index) = handle.checked_sub(self.first) else { return };
        if index as usize == self.slots.len() {
            self.slots.push(None);
        }
        if let Some(slot @ None) = self.slots.get_mut(index as usize) {
            *slot = Some(Box::new(object));
            self.live += 1;
            self.cursor = (index + 1) % self.limit.max(1);
        }
    }

    /// Handles used so far, and where a free one is looked for.
    pub(crate) const fn shape(&self) -> (u32, u32) {
        (self.slots.len() as u32, self.cursor)
    }

    /// Makes an empty table look as if `used` handles had been used; `false` when there are not as many.
    #[must_use]
    pub(crate) fn reserve(&mut self, (used, cursor): (u32, u32)) -> bool {
        let valid = used <= self.limit && cursor <= self.limit;
        if valid {
            self.slots.resize_with(used as usize, || None);
            self.cursor = cursor;
        }
        valid
    }

    /// Whether a handle has been used and its object is gone.
    pub(crate) fn is_vacant(&self, handle: u32) -> bool {
        let index = handle.checked_sub(self.first).map(|index| index as usize);
        index.and_then(|index| self.slots.get(index)).is_some_and(Option::is_none)
    }

    /// Puts an object where it was; `false` when something is there, or the handle was never used.
    #[must_use]
    pub(crate) fn put_back(&mut self, handle: u32, object: T) -> bool {
        let index = handle.checked_sub(self.first).map(|index| index as usize);
        let Some(slot @ None) = index.and_then(|index| self.slots.get_mut(index)) else { return false };
        *slot = Some(Box::new(object));
        self.live += 1;
        true
    }

    /// The object at a handle.
    pub(crate) fn get(&self, handle: u32) -> Option<&T> {
        self.slots.get(handle.checked_sub(self.first)? as usize)?.as_deref()
    }

    /// The object at a handle.
    pub(crate) fn get_mut(&mut self, handle: u32) -> Option<&mut T> {
        self.slots.get_mut(handle.checked_sub(self.first)? as usize)?.as_deref_mut()
    }

    /// Takes the object at a handle out.
    pub(crate) fn remove(&mut self, handle: u32) -> Option<T> {
        let object = self.slots.get_mut(handle.checked_sub(self.first)? as usize)?.take()?;
        self.live -= 1;
        Some(*object)
    }

    /// All objects with their handles.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (self.first..).zip(&self.slots).filter_map(|(handle, slot)| Some((handle, slot.as_deref()?)))
    }

    /// Handles of the objects for which `wanted` holds.
    pub(crate) fn handles(&self, wanted: impl Fn(&T) -> bool) -> Vec<u32> {
        self.iter().filter(|(_, object)| wanted(object)).map(|(handle, _)| handle).collect()
    }

    /// Objects in the table.
    pub(crate) const fn len(&self) -> u32 {
        self.live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_handle_is_the_last_to_be_reused() {
        let mut table = Table::new(1, 5);
        for expected in 1..5 {
            let handle = table.vacant().unwrap();
            assert_eq!(handle, expected);
            table.insert(handle, ());
        }
        assert_eq!(table.vacant(), None);
        table.remove(2).unwrap();
        table.remove(4).unwrap();
        assert_eq!(table.vacant(), Some(2));
        table.insert(2, ());
        assert_eq!(table.vacant(), Some(4));
    }

    #[test]
    fn handles_outside_the_range_name_nothing() {
        let mut table = Table::new(1, 3);
        table.insert(1, 'a');
        assert_eq!((table.get(0), table.get(2), table.get(3), table.get(u32::MAX)), (None, None, None, None));
        assert_eq!(table.remove(0), None);
        assert_eq!(table.remove(1), Some('a'));
        assert_eq!(table.remove(1), None);
        assert_eq!(table.len(), 0);
    }
}
