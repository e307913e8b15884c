//! Objects by the number the device model chose.

use verbs::Error;

/// Objects by number, dense from zero up to a limit.
#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Vec<Option<T>>,
    used: u32,
    limit: u32,
}

impl<T> Table<T> {
    /// A table for the numbers below `limit`.
    pub(crate) const fn new(limit: u32) -> Self {
        Self { slots: Vec::new(), used: 0, limit }
    }

    /// Whether `id` can be inserted.
    pub(crate) fn check_free(&self, id: u32) -> Result<(), Error> {
        match self.get(id) {
            Some(_) => Err(Error::Exists),
            None if id >= self.limit => Err(Error::Exhausted),
            None => Ok(()),
        }
    }

    pub(crate) fn insert(&mut self, id: u32, value: T) -> Result<(), Error> {
        self.check_free(id)?;
        let at = id as usize;
        if at >= self.slots.len() {
            self.slots.resize_with(at + 1, || None);
        }
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = Some(value);
            self.used += 1;
        }
        Ok(())
    }

    pub(crate) fn remove(&mut self, id: u32) -> Option<T> {
        let value = self.slots.get_mut(id as usize)?.take()?;
        self.used -= 1;
        Some(value)
    }

    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        self.slots.get(id as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.slots.get_mut(id as usize)?.as_mut()
    }

    pub(crate) fn require(&mut self, id: u32) -> Result<&mut T, Error> {
        self.get_mut(id).ok_or(Error::NotFound)
    }

    /// All objects with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.slots).filter_map(|(id, slot)| Some((id, slot.as_ref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(Option::as_mut)
    }

    pub(crate) fn clear(&mut self) {
        self.slots = Vec::new();
        self.used = 0;
    }
}
