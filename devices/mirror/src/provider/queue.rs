//! Work requests that the host has, and the names they have there.

use std::collections::{HashMap, VecDeque};

use verbs::{QpId, SrqId};

/// Which queue a number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// Sends of a queue pair.
    Send(QpId),
    /// Receives of a queue pair.
    Recv(QpId),
    /// A shared receive queue.
    Srq(SrqId),
}

/// Numbers of queues. A queue gets a new one when it is reset, so that completions from before are known for what they are.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    last: u32,
    queues: HashMap<u32, Queue>,
}

impl Numbers {
    pub(super) fn assign(&mut self, queue: Queue) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            if let std::collections::hash_map::Entry::Vacant(entry) = self.queues.entry(self.last) {
                entry.insert(queue);
                return self.last;
            }
        }
    }

    pub(super) fn release(&mut self, number: u32) {
        self.queues.remove(&number);
    }

    /// Forgets all queues; their numbers are not used again soon.
    pub(super) fn release_all(&mut self) {
        self.queues.clear();
    }

    /// The queue and the position that the name of a request on the host stands for.
    pub(super) fn resolve(&self, wr_id: u64) -> Option<(Queue, u32)> {
        let queue = *self.queues.get(&((wr_id >> 32) as u32))?;
        Some((queue, wr_id as u32))
    }
}

/// The name of the request at `position` of the queue with that number.
const fn name(number: u32, position: u32) -> u64 {
    (number as u64) << 32 | position as u64
}

/// The requests of a queue that finishes them in order.
#[derive(Debug)]
pub(super) struct Ordered<T> {
    number: u32,
    /// Position of the oldest request.
    first: u32,
    posted: VecDeque<T>,
    limit: u32,
}

impl<T> Ordered<T> {
    pub(super) fn new(number: u32, limit: u32) -> Self {
        Self { number, first: 0, posted: VecDeque::new(), limit }
    }

    pub(super) const fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn is_full(&self) -> bool {
        self.posted.len() >= self.limit as usize
    }

    /// Name of the next request.
    pub(super) fn next_name(&self) -> u64 {
        name(self.number, self.first.wrapping_add(self.posted.len() as u32))
    }

    pub(super) fn push(&mut self, request: T) {
        self.posted.push_back(request);
    }

    /// The request at `position` is finished, and with it all before. Returns how many that are, and the last of them.
    pub(super) fn finish(&mut self, position: u32) -> Option<(u32, T)> {
        let before = position.wrapping_sub(self.first);
        if before as usize >= self.posted.len() {
            return None;
        }
        let last = self.posted.drain(..=before as usize).next_back()?;
        self.first = position.wrapping_add(1);
        Some((before + 1, last))
    }

    /// Takes the oldest request out.
    pub(super) fn pop(&mut self) -> Option<T> {
        let request = self.posted.pop_front()?;
        self.first = self.first.wrapping_add(1);
        Some(request)
    }

    /// Starts anew with another number.
    pub(super) fn restart(&mut self, number: u32) {
        *self = Self::new(number, self.limit);
    }
}

/// The requests of a queue that several queue pairs take from.
#[derive(Debug)]
pub(super) struct Shared<T> {
    number: u32,
    next: u32,
    posted: HashMap<u32, T>,
    limit: u32,
}

impl<T> Shared<T> {
    pub(super) fn new(number: u32, limit: u32) -> Self {
        Self { number, next: 0, posted: HashMap::new(), limit }
    }

    pub(super) const fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn is_full(&self) -> bool {
        self.posted.len() >= self.limit as usize
    }

    pub(super) const fn next_name(&self) -> u64 {
        name(self.number, self.next)
    }

    pub(super) fn push(&mut self, request: T) {
        self.posted.insert(self.next, request);
        self.next = self.next.wrapping_add(1);
    }

    pub(super) fn finish(&mut self, position: u32) -> Option<T> {
        self.posted.remove(&position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_finishes_all_requests_up_to_its_own() {
        let mut queue = Ordered::new(3, 4);
        queue.first = u32::MAX - 1;
        let names: Vec<_> = (0..4)
            .map(|i| {
                let name = queue.next_name();
                queue.push(i);
                name
            })
            .collect();
        assert!(queue.is_full());
        assert_eq!(names[3], 3 << 32 | 1, "positions wrap");
        assert_eq!(queue.finish(names[2] as u32), Some((3, 2)));
        assert_eq!(queue.finish(names[1] as u32), None, "and none twice");
        assert_eq!(queue.finish(names[3] as u32), Some((1, 3)));
        assert_eq!(queue.finish(names[3] as u32), None);
    }

    #[test]
    fn names_from_before_a_restart_mean_nothing() {
        let mut numbers = Numbers::default();
        let mut queue = Ordered::new(numbers.assign(Queue::Send(QpId(7))), 4);
        let stale = queue.next_name();
        queue.push(());
        numbers.release(queue.number());
        queue.restart(numbers.assign(Queue::Send(QpId(7))));
        assert_eq!(numbers.resolve(stale), None);
        assert_eq!(numbers.resolve(queue.next_name()), Some((Queue::Send(QpId(7)), 0)));
    }
}
