//! What a device reports, against what must come of it.

use std::mem::replace;

use verbs::{Completion, ProviderEvent, QpId, WcFlags, WcOpcode, WcStatus};

use super::{Action, Check, Entry, Model, WORD, same};
use crate::area::{Area, Pieces, gather, scatter, total};

impl Model {
    /// The device reported something.
    pub fn observe(&mut self, node: usize, event: &ProviderEvent, areas: &[Area; 2]) -> Check {
        match *event {
            ProviderEvent::SendRetired(qp) => {
                if let Some(end) = self.end(node, qp) {
                    self.streams[end].retired += 1;
                }
                Ok(())
            }
            ProviderEvent::RecvRetired(_) | ProviderEvent::SrqRetired(_) => Ok(()),
            ProviderEvent::Async(event) => {
                self.events.push((node, event));
                Ok(())
            }
            ProviderEvent::Completion(completion) => {
                let end = self.end(node, completion.qp).ok_or("completion of an unknown queue pair")?;
                self.completions += 1;
                self.statuses.insert(completion.status);
                let is_send = (completion.opcode as u32) < WcOpcode::Recv as u32;
                let result = match (is_send, completion.status) {
                    (true, WcStatus::Success) => self.on_sent(end, &completion, areas),
                    (true, _) => self.on_send_failed(end, &completion, areas),
                    (false, WcStatus::Success) => self.on_received(end, &completion, areas),
                    (false, _) => self.on_receive_failed(end, &completion, areas),
                };
                result.map_err(|why| format!("{why}: {completion:?} of node {node}"))
            }
        }
    }

    fn end(&self, node: usize, qp: QpId) -> Option<usize> {
        self.streams.iter().position(|stream| stream.end.node == node && stream.end.qp == qp)
    }

    /// Position in the log of a completed request. All before it must have ended without a word.
    fn find(&self, end: usize, completion: &Completion) -> Result<usize, String> {
        let stream = &self.streams[end];
        same("completion queue", completion.cq, stream.end.send_cq)?;
        let at = stream.log.iter().position(|entry| entry.request.wr_id == completion.wr_id);
        let at = at.ok_or("completion of what was not posted, or has ended")?;
        if stream.log.iter().take(at).any(|entry| entry.request.signaled) {
            return Err("an earlier request has no completion".into());
        }
        let entry = &stream.log[at];
        same("opcode", completion.opcode, entry.request.action.opcode())?;
        same("requests retired", stream.retired, entry.number + 1)?;
        Ok(at)
    }

    fn on_sent(&mut self, end: usize, completion: &Completion, areas: &[Area; 2]) -> Check {
        let at = self.find(end, completion)?;
        let request = &self.streams[end].log[at].request;
        if self.streams[end].failed || !request.signaled {
            return Err("success of a request that must not tell any".into());
        }
        same("flags", completion.flags, WcFlags::empty())?;
        same("solicited", completion.solicited, false)?;
        if self.streams[end].log[at].result.is_some() {
            same("length", completion.byte_len as usize, total(&request.pieces))?;
        }
        self.confirm(end, at + 1, areas)
    }

    /// The `count` oldest requests are done: memory must show it.
    pub(super) fn confirm(&mut self, end: usize, count: usize, areas: &[Area; 2]) -> Check {
        let (node, peer) = (self.streams[end].end.node, self.peer_node(end));
        for _ in 0..count {
            let Some(entry) = self.streams[end].log.pop_front() else { break };
            self.check_remote(end, &entry, areas)?;
            if let Some((at, bytes)) = &entry.remote {
                self.shadow[peer][*at..at + bytes.len()].copy_from_slice(bytes);
            }
            let stream = &self.streams[end];
            if entry.is_message && stream.delivered <= entry.number {
                return Err("done before its message was received".into());
            }
            let pieces = &entry.request.pieces;
            if let Some(bytes) = &entry.result {
                let found = areas[node].gather(pieces, bytes.len());
                if found != *bytes {
                    return Err(format!("wrong result of {:?}", entry.request));
                }
                scatter(&mut self.shadow[node], pieces, bytes);
            }
            match entry.request.action {
                Action::Count { add } => {
                    let original = areas[node].gather(pieces, WORD);
                    let original = u64::from_le_bytes(original.try_into().unwrap());
                    self.counts[peer].push((original, add));
                    pieces.iter().for_each(|piece| self.adopt(node, piece.clone(), areas));
                }
                action if action.fate().is_some() => return Err("success of what must fail".into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Compares what a request has put in the peer's memory, as far as no later request may have changed it again.
    fn check_remote(&self, end: usize, entry: &Entry, areas: &[Area; 2]) -> Check {
        let Some((at, bytes)) = &entry.remote else { return Ok(()) };
        let found = areas[self.peer_node(end)].read(*at..at + bytes.len());
        let later = self.streams[end].log.iter().filter(|later| later.number > entry.number);
        let changed: Vec<_> = later.filter_map(Entry::remote_range).collect();
        let settled = |i: usize| !changed.iter().any(|range| range.contains(&(at + i)));
        match (0..bytes.len()).find(|i| found[*i] != bytes[*i] && settled(*i)) {
            None => Ok(()),
            Some(i) => Err(format!("byte {i} of {:?} is not in place", entry.request)),
        }
    }

    fn on_send_failed(&mut self, end: usize, completion: &Completion, areas: &[Area; 2]) -> Check {
        let at = self.find(end, completion)?;
        let failed = self.streams[end].failed;
        if failed && at > 0 {
            return Err("flushed out of order".into());
        }
        let doomed = |entry: &Entry| entry.request.action.fate().is_some();
        let unheard = self.tolerance.loses_refusals && self.streams[end].log.iter().any(doomed);
        // A peer that has failed answers no more.
        let silence = self.tolerance.gives_up || unheard || self.streams[self.streams[end].end.peer].failed;
        let entry = &self.streams[end].log[at];
        let allowed = match completion.status {
            WcStatus::WrFlushErr => true,
            _ if failed => false,
            WcStatus::RetryExcErr => silence,
            WcStatus::RnrRetryExcErr => self.tolerance.runs_out_of_receives && entry.is_message,
            status => entry.request.action.fate() == Some(status),
        };
        if !allowed {
            return Err("a status it must not have".into());
        }
        self.confirm(end, at, areas)?;
        let stream = &mut self.streams[end];
        stream.unfinished.extend(stream.log.pop_front());
        stream.failed = true;
        Ok(())
    }

    fn on_received(&mut self, end: usize, completion: &Completion, areas: &[Area; 2]) -> Check {
        let stream = &self.streams[end];
        let (node, sender) = (stream.end.node, stream.end.peer);
        if stream.receives_flushed {
            return Err("received after a flush".into());
        }
        same("completion queue", completion.cq, stream.end.recv_cq)?;
        let pieces = self.take_receive(end, completion.wr_id)?;
        let message = self.streams[sender].messages.pop_front().ok_or("received what nobody sent")?;
        same("status", completion.status, message.status)?;
        same("opcode", completion.opcode, message.opcode)?;
        same("length", completion.byte_len as usize, message.len)?;
        same("immediate data or key", completion.imm_or_key, message.imm_or_key)?;
        same("flags", completion.flags, message.flags)?;
        same("solicited", completion.solicited, message.solicited)?;
        same("sender", completion.src_qp, self.streams[sender].end.qpn)?;
        if areas[node].gather(&pieces, message.data.len()) != message.data {
            return Err("the message is not what was sent".into());
        }
        for memory in [&mut self.shadow[node], &mut self.ahead[node]] {
            scatter(memory, &pieces, &message.data);
        }
        let mut done = self.streams[sender].log.iter().filter(|entry| entry.number <= message.number);
        done.try_for_each(|entry| self.check_remote(sender, entry, areas))?;
        self.streams[sender].delivered = message.number + 1;
        Ok(())
    }

    /// Takes a receive out of its pool. A queue pair takes its own in order; of a shared queue each other queue pair may
    /// hold one older one.
    fn take_receive(&mut self, end: usize, wr_id: u64) -> Result<Pieces, String> {
        let pool = &mut self.pools[self.streams[end].end.pool];
        let at = pool.waiting.iter().position(|(waiting, _)| *waiting == wr_id);
        let at = at.ok_or("completion of a receive that was not posted, or has ended")?;
        if at >= pool.users {
            return Err("receives are taken out of order".into());
        }
        pool.waiting.remove(at).map(|(_, pieces)| pieces).ok_or_else(String::new)
    }

    fn on_receive_failed(&mut self, end: usize, completion: &Completion, areas: &[Area; 2]) -> Check {
        let (node, sender) = (self.streams[end].end.node, self.streams[end].end.peer);
        let pieces = self.take_receive(end, completion.wr_id)?;
        // The first one may hold the start of a message.
        let first = !replace(&mut self.streams[end].receives_flushed, true);
        let message = self.streams[sender].messages.front().filter(|_| first);
        let refused = message.is_some_and(|message| message.status == completion.status);
        if completion.status != WcStatus::WrFlushErr && !refused {
            return Err("a status it must not have".into());
        }
        let data = message.map_or(&[][..], |message| &message.data);
        self.check_start(node, &pieces, data, areas)?;
        pieces.into_iter().for_each(|piece| self.adopt(node, piece, areas));
        Ok(())
    }

    /// Compares pieces with what they held before, but for a message of which any number of bytes have arrived.
    pub(super) fn check_start(&self, node: usize, pieces: &Pieces, data: &[u8], areas: &[Area; 2]) -> Check {
        let found = areas[node].gather(pieces, usize::MAX);
        let mut wanted = gather(&self.shadow[node], pieces, usize::MAX);
        let arrived = data.iter().zip(&found).take_while(|(a, b)| a == b).count();
        wanted[..arrived].copy_from_slice(&data[..arrived]);
        if found == wanted { Ok(()) } else { Err("memory holds neither old nor new data".into()) }
    }
}
