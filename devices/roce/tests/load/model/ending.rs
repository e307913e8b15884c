//! The end of a load: nothing may be left unexplained.

use verbs::AsyncEvent;

use super::{Action, COUNTER, Check, Model, WORD, same};
use crate::area::Area;

impl Model {
    /// Nothing is under way: all that has not failed must be done.
    pub fn settle(&mut self, areas: &[Area; 2]) -> Check {
        for end in 0..self.streams.len() {
            let stream = &self.streams[end];
            if stream.failed {
                continue;
            }
            same("requests retired", stream.retired, stream.posted)?;
            if stream.log.iter().any(|entry| entry.request.signaled) {
                return Err(format!("a completion is missing: {:?}", stream.log));
            }
            self.confirm(end, usize::MAX, areas)?;
            let stream = &self.streams[end];
            if !stream.messages.is_empty() {
                return Err(format!("messages were not received: {:?}", stream.messages));
            }
        }
        Ok(())
    }

    /// All queue pairs are in the error state: memory must hold exactly what is left to explain.
    pub fn finish(&mut self, areas: &[Area; 2]) -> Check {
        self.check_events()?;
        let failed = self.any_failed();
        for end in 0..self.streams.len() {
            let stream = &self.streams[end];
            same("requests retired", stream.retired, stream.posted)?;
            if !stream.log.is_empty() {
                return Err(format!("not flushed: {:?}", stream.log));
            }
            self.explain(end, areas)?;
        }
        for pool in &self.pools {
            if pool.srq.is_none() && !pool.waiting.is_empty() {
                return Err(format!("receives were not flushed: {:?}", pool.waiting));
            }
        }
        for node in 0..2 {
            if !failed {
                self.check_counter(node, areas)?;
            }
            self.adopt(node, COUNTER..COUNTER + WORD, areas);
            let found = areas[node].read(0..areas[node].len());
            let wrong = (0..found.len()).find(|i| found[*i] != self.shadow[node][*i]);
            if let Some(at) = wrong {
                return Err(format!("byte {at} of node {node} should not have changed, or should have"));
            }
            if !areas[node].gaps_are_clean() {
                return Err(format!("node {node} was written to outside all regions"));
            }
        }
        Ok(())
    }

    /// Whether memory can be as it is after the requests of a stream that ended unfinished: some were carried out, one may
    /// have been in part, and the rest was not.
    fn explain(&mut self, end: usize, areas: &[Area; 2]) -> Check {
        let (node, peer) = (self.streams[end].end.node, self.peer_node(end));
        let target = self.streams[end].end.target.clone();
        let found = areas[peer].read(target.clone());
        let mut state = self.shadow[peer][target.clone()].to_vec();
        let unfinished = std::mem::take(&mut self.streams[end].unfinished);
        let doomed = unfinished.iter().position(|entry| entry.request.action.fate().is_some());
        let mut explained = state == found;
        for entry in unfinished.iter().take(doomed.unwrap_or(usize::MAX)) {
            if let Some((at, bytes)) = entry.remote.as_ref().filter(|_| !explained) {
                let place = &mut state[at - target.start..][..bytes.len()];
                let there = &found[at - target.start..][..bytes.len()];
                let arrived = bytes.iter().zip(there).take_while(|(a, b)| a == b).count();
                place[..arrived].copy_from_slice(&bytes[..arrived]);
                explained = state == found;
                let place = &mut state[at - target.start..][..bytes.len()];
                place.copy_from_slice(bytes);
            }
        }
        for entry in &unfinished {
            let pieces = &entry.request.pieces;
            match (&entry.result, entry.request.action) {
                (Some(bytes), _) => self.check_start(node, pieces, bytes, areas)?,
                (None, Action::Count { .. }) => {}
                (None, _) => continue,
            }
            pieces.iter().for_each(|piece| self.adopt(node, piece.clone(), areas));
        }
        if !explained {
            return Err(format!("what was written for end {end} is not what it asked for"));
        }
        self.adopt(peer, target, areas);
        Ok(())
    }

    /// The originals that all who counted got must be those of one order of their additions.
    fn check_counter(&self, node: usize, areas: &[Area; 2]) -> Check {
        let mut counts = self.counts[node].clone();
        counts.sort_unstable();
        let mut value = 0;
        for (original, add) in counts {
            same("original of a shared counter", original, value)?;
            value += add;
        }
        let found = areas[node].read(COUNTER..COUNTER + WORD);
        same("shared counter", u64::from_le_bytes(found.try_into().unwrap()), value)
    }

    /// Each queue pair with a shared queue says once that it takes no more; a refused request is an event for whoever
    /// refused it; nothing else happens.
    fn check_events(&self) -> Check {
        for stream in &self.streams {
            let shared = self.pools[stream.end.pool].srq.is_some();
            let last = (stream.end.node, AsyncEvent::LastWqeReached(stream.end.qp));
            let told = self.events.iter().filter(|event| **event == last).count();
            same("last receives told", told, usize::from(shared))?;
        }
        let refusals = self.streams.iter().flat_map(|stream| &stream.unfinished);
        let refusals = refusals.filter(|entry| entry.request.action.fate().is_some()).count();
        let others = self.events.iter().filter(|(_, event)| !matches!(event, AsyncEvent::LastWqeReached(_)));
        for (node, event) in others {
            let refused = matches!(event, AsyncEvent::QpAccessErr(_) | AsyncEvent::QpReqErr(_));
            if refusals == 0 || !refused {
                return Err(format!("{event:?} on node {node}"));
            }
        }
        Ok(())
    }
}
