//! All clients of a machine.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use host_io::socket_file::Listener;
use rustix::io::Errno;

use super::Service;
use super::connection::{Connection, Turn};

/// Connections at one time.
pub(super) const MAX_CONNECTIONS: usize = 16;
/// Pause after each request. A request stops a device for some ten microseconds; however many clients ask and however
/// often, devices then belong to their guest for nearly all of the time.
const BREATH: Duration = Duration::from_millis(1);
/// Pause when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Key of the listener; those of connections start above.
const LISTENER: u32 = 0;

/// A client with its place in the order of the latest turns.
struct Client {
    connection: Connection,
    interest: EventSet,
    last_turn: u64,
}

/// The socket's event handler.
pub(super) struct Server {
    listener: Listener,
    service: Arc<dyn Service>,
    clients: BTreeMap<u32, Client>,
    turns: u64,
}

impl Server {
    pub(super) fn new(listener: Listener, service: Arc<dyn Service>) -> Self {
        Self { listener, service, clients: BTreeMap::new(), turns: 0 }
    }

    fn accept(&mut self, ops: &mut EventOps) {
        let stream = match self.listener.accept() {
            Ok(socket) => UnixStream::from(socket),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            Err(error) => {
                // The connection stays and would be reported at once, again and again.
                device_model::guest_warn!(%error, "Cannot accept a connection to the API socket");
                thread::sleep(ACCEPT_PAUSE);
                return;
            }
        };
        if self.clients.len() >= MAX_CONNECTIONS {
            self.drop_quietest(ops);
        }
        let Some(key) = (LISTENER + 1..).find(|key| !self.clients.contains_key(key)) else { return };
        let client =
            Client { connection: Connection::new(stream), interest: EventSet::IN, last_turn: self.turns };
        match ops.add(Events::with_data(&client.connection, key, client.interest)) {
            Ok(()) => drop(self.clients.insert(key, client)),
            Err(error) => tracing::warn!(?error, "Cannot watch a connection to the API socket"),
        }
    }

    fn drop_quietest(&mut self, ops: &mut EventOps) {
        if let Some((&key, _)) = self.clients.iter().min_by_key(|(_, client)| client.last_turn) {
            self.close(key, ops);
        }
    }

    fn turn(&mut self, key: u32, ops: &mut EventOps) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        self.turns += 1;
        client.last_turn = self.turns;
        let turn = client.connection.turn(&*self.service);
        let interest = client.connection.interest();
        if turn == Turn::Over {
            self.close(key, ops);
        } else if interest != client.interest {
            client.interest = interest;
            if ops.modify(Events::with_data(&client.connection, key, interest)).is_err() {
                self.close(key, ops);
            }
        }
        if turn == Turn::Served {
            thread::sleep(BREATH);
        }
    }

    fn close(&mut self, key: u32, ops: &mut EventOps) {
        if let Some(client) = self.clients.remove(&key)
            && let Err(error) = ops.remove(Events::with_data(&client.connection, key, client.interest))
        {
            tracing::warn!(?error, "Cannot stop watching a connection to the API socket");
        }
    }
}

impl MutEventSubscriber for Server {
    fn init(&mut self, ops: &mut EventOps) {
        if let Err(error) = ops.add(Events::with_data(&self.listener, LISTENER, EventSet::IN)) {
            tracing::error!(?error, "Failed to watch the API socket");
        }
    }

    fn process(&mut self, events: Events, ops: &mut EventOps) {
        match events.data() {
            LISTENER => self.accept(ops),
            key => self.turn(key, ops),
        }
    }
}
