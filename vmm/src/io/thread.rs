//! A thread that runs event handlers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use event_manager::{EventManager, EventOps, Events, MutEventSubscriber, RemoteEndpoint, SubscriberOps};

use crate::error::{Error, Result};

/// An event handler that an I/O thread owns. One handler's state is touched by one thread only, so it needs no lock.
///
/// A handler that waits for time adds a `timerfd` (`vmm_sys_util::timerfd::TimerFd`) to its events.
pub type Subscriber = Box<dyn MutEventSubscriber + Send>;

/// A thread that waits; dropping this lets it go on.
pub struct Parked {
    _wake: SyncSender<()>,
}

/// A running I/O thread; dropping it stops the thread, drops its handlers and waits for that.
pub struct IoThread {
    endpoint: RemoteEndpoint<Subscriber>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl IoThread {
    /// Starts a thread that runs `subscribers`.
    ///
    /// # Errors
    ///
    /// When the host has no room for another thread or epoll instance.
    pub fn spawn(name: &str, subscribers: Vec<Subscriber>) -> Result<Self> {
        let failed =
            |e: &dyn std::fmt::Display| Error::Failure(format!("Failed to start I/O thread {name}: {e}"));
        let mut manager = EventManager::new().map_err(|e| failed(&e))?;
        let stop = Arc::new(AtomicBool::new(false));
        for subscriber in subscribers {
            manager.add_subscriber(UntilStopped::boxed(subscriber, &stop));
        }
        let endpoint = manager.remote_endpoint();
        let stopped = Arc::clone(&stop);
        let thread = Builder::new()
            .name(name.to_owned())
            .spawn(move || run(manager, &stopped))
            .map_err(|e| failed(&e))?;
        Ok(Self { endpoint, stop, thread: Some(thread) })
    }

    /// Lets the thread do nothing until what is returned is dropped. On return no handler is at work.
    ///
    /// # Errors
    ///
    /// When the thread has ended.
    pub fn park(&self) -> Result<Parked> {
        let ended = || Error::Failure("An I/O thread has ended".to_owned());
        let (here, waits) = sync_channel(1);
        let (wake, woken) = sync_channel::<()>(0);
        let wait = move |_: &mut dyn SubscriberOps<Subscriber = Subscriber>| {
            // Nobody is left to hear it if the machine was given up meanwhile.
            let _ = here.send(());
            let _ = woken.recv();
        };
        self.endpoint.fire(wait).map_err(|_| ended())?;
        waits.recv().map_err(|_| ended())?;
        Ok(Parked { _wake: wake })
    }

    /// Ends the thread: no handler does anything any more, not even with what a parked thread finds when it goes on.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Hands the thread one more handler.
    ///
    /// # Errors
    ///
    /// When the thread has ended.
    pub fn add(&self, subscriber: Subscriber) -> Result<()> {
        let subscriber = UntilStopped::boxed(subscriber, &self.stop);
        self.endpoint
            .fire(|ops| {
                ops.add_subscriber(subscriber);
            })
            .map_err(|e| Error::Failure(format!("Failed to reach an I/O thread: {e}")))
    }
}

fn run(mut manager: EventManager<Subscriber>, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        if let Err(error) = manager.run() {
            tracing::error!(%error, "Failed to wait for events: this thread's devices stop");
            return;
        }
    }
}

/// A handler that does nothing once its thread is to end, whatever has become ready by then.
struct UntilStopped {
    inner: Subscriber,
    stop: Arc<AtomicBool>,
}

impl UntilStopped {
    fn boxed(inner: Subscriber, stop: &Arc<AtomicBool>) -> Subscriber {
        Box::new(Self { inner, stop: Arc::clone(stop) })
    }
}

impl MutEventSubscriber for UntilStopped {
    fn init(&mut self, ops: &mut EventOps) {
        self.inner.init(ops);
    }

    fn process(&mut self, events: Events, ops: &mut EventOps) {
        if !self.stop.load(Ordering::Acquire) {
            self.inner.process(events, ops);
        }
    }
}

impl Drop for IoThread {
    fn drop(&mut self) {
        self.stop();
        let kicked = self.endpoint.kick();
        if let Some(thread) = self.thread.take()
            && (kicked.is_ok() || thread.is_finished())
            && thread.join().is_err()
        {
            tracing::error!("An I/O thread panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use device_model::doorbell::Bell;
    use event_manager::{EventOps, EventSet, Events};

    use super::super::EventBell;
    use super::*;

    struct Echo(Arc<EventBell>, mpsc::Sender<()>);

    impl MutEventSubscriber for Echo {
        fn init(&mut self, ops: &mut EventOps) {
            ops.add(Events::new(&*self.0, EventSet::IN)).unwrap();
        }

        fn process(&mut self, _: Events, _: &mut EventOps) {
            self.0.clear();
            self.1.send(()).unwrap();
        }
    }

    #[test]
    fn thread_that_was_parked_and_stopped_does_nothing_more() {
        let bell = Arc::new(EventBell::new().unwrap());
        let (sender, receiver) = mpsc::channel();
        let thread = IoThread::spawn("test", vec![Box::new(Echo(Arc::clone(&bell), sender))]).unwrap();
        let parked = thread.park().unwrap();
        bell.ring();
        thread.stop();
        drop((parked, thread));
        assert!(receiver.recv().is_err(), "it must not be heard");
    }

    #[test]
    fn handlers_run_until_the_thread_is_dropped() {
        let bells = [(); 2].map(|()| Arc::new(EventBell::new().unwrap()));
        let (sender, receiver) = mpsc::channel();
        let echo = |bell: &Arc<EventBell>| Box::new(Echo(Arc::clone(bell), sender.clone()));
        let thread = IoThread::spawn("test", vec![echo(&bells[0])]).unwrap();
        thread.add(echo(&bells[1])).unwrap();
        for bell in &bells {
            bell.ring();
            receiver.recv().unwrap();
        }
        drop((thread, sender));
        assert!(receiver.recv().is_err(), "the handlers must be gone with the thread");
    }
}
