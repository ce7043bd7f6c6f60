//! Messages between the controllers of one process. The manager creates new channels with each cache.
//!
//! A message can have any type; see [`crate::messages`]. Sending a message calls each receiver, so that a
//! receiver has, for example, enqueued a key before the sender continues.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    fmt,
};

use parking_lot::RwLock;

type Receiver = Box<dyn Fn(&dyn Any) + Send + Sync>;

/// The channels of one process, one for each type of message.
#[derive(Default)]
pub(crate) struct Channels(RwLock<HashMap<TypeId, Vec<Receiver>>>);

impl Channels {
    /// Calls `receiver` for every later message of type `M`. `receiver` runs in the sender's task and must
    /// not block.
    pub(crate) fn subscribe<M: Any>(&self, receiver: impl Fn(&M) + Send + Sync + 'static) {
        let receiver: Receiver = Box::new(move |message| {
            if let Some(message) = message.downcast_ref() {
                receiver(message);
            }
        });
        self.0.write().entry(TypeId::of::<M>()).or_default().push(receiver);
    }

    /// Delivers a message. Returns false if no controller of this process receives messages of this type.
    pub(crate) fn send<M: Any>(&self, message: &M) -> bool {
        let receivers = self.0.read();
        let receivers = receivers.get(&TypeId::of::<M>()).map(Vec::as_slice).unwrap_or_default();
        receivers.iter().for_each(|receiver| receiver(message));
        !receivers.is_empty()
    }
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channels").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn a_message_reaches_every_receiver_of_its_type_before_send_returns() {
        let (channels, received) = (Channels::default(), Arc::new(Mutex::new(Vec::new())));
        assert!(!channels.send(&1_u32), "no receiver");
        for receiver in ["a", "b"] {
            let received = Arc::clone(&received);
            channels.subscribe(move |number: &u32| received.lock().push((receiver, *number)));
        }
        assert!(channels.send(&7_u32));
        assert_eq!(*received.lock(), [("a", 7), ("b", 7)]);
        assert!(!channels.send(&"another type"));
        assert_eq!(received.lock().len(), 2);
    }
}
