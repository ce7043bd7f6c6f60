//! What a guest may ask of the host: one module per import, each with its own policy.

pub(crate) mod ambient;
pub(crate) mod log;
pub(crate) mod settings;
pub(crate) mod state;

use std::{collections::BTreeSet, sync::Arc};

use wasmtime::component::{HasData, Linker};

use crate::{bindings::cofferdam::storage as wit, inspect::Grant, instance::Host, limits::Limits};

/// What one call can reach.
#[derive(Debug)]
pub(crate) struct Capabilities {
    log: log::Log,
    settings: Arc<settings::Settings>,
    state: Arc<state::Store>,
}

/// What all calls of one backend share.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) settings: Arc<settings::Settings>,
    pub(crate) state: Arc<state::Store>,
}

impl Shared {
    /// The part of it that one call gets.
    pub(crate) fn for_call(&self, limits: &Limits) -> Capabilities {
        Capabilities {
            log: log::Log::new(limits.log_bytes),
            settings: Arc::clone(&self.settings),
            state: Arc::clone(&self.state),
        }
    }
}

impl Capabilities {
    /// Says what the log has lost, when the call is over.
    pub(crate) fn finish(&self) {
        self.log.finish();
    }
}

/// How the generated code finds the capabilities in a store.
struct Access;

impl HasData for Access {
    type Data<'a> = &'a mut Capabilities;
}

/// Links what was granted, and nothing else.
pub(crate) fn link(linker: &mut Linker<Host>, grants: &BTreeSet<Grant>) -> wasmtime::Result<()> {
    wit::types::add_to_linker::<Host, Access>(linker, Host::capabilities)?;
    for grant in grants {
        match grant {
            Grant::Log => wit::log::add_to_linker::<Host, Access>(linker, Host::capabilities)?,
            Grant::Ambient => wit::ambient::add_to_linker::<Host, Access>(linker, Host::capabilities)?,
            Grant::Settings => wit::settings::add_to_linker::<Host, Access>(linker, Host::capabilities)?,
            Grant::State => wit::state::add_to_linker::<Host, Access>(linker, Host::capabilities)?,
        }
    }
    Ok(())
}

impl wit::types::Host for Capabilities {}
