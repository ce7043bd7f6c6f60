//! A controller, and its declaration: everything that the manager, RBAC and the command line need to know
//! about it.

use std::sync::Arc;

use cofferdam_backend::Backend;
use cofferdam_domain::DriverName;
use futures::future::BoxFuture;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::{
    context::ProcessContext,
    error::ControllerManagerError,
    rbac::{DriverPlacement, RuleSet},
    role::Role,
    settings::Settings,
    watches::WatchSpec,
};

/// Function type of [`DeclaredController::check`].
type Check = fn(&Settings, &[Arc<dyn Backend>]) -> Result<(), ControllerManagerError>;
/// Function type of [`DeclaredController::watches`].
type Watches = fn(&Settings, &[Arc<dyn Backend>]) -> Vec<WatchSpec>;

/// A controller. It works on one cache and in one term of leadership: after a detected restore of the cluster
/// from a backup, and at the start of each term, the manager creates new controllers.
pub(crate) trait Controller: Send + Sync + Sized + 'static {
    /// Dependencies of the controller: cache, writer, drivers, settings, metrics.
    type Context;

    /// Creates the controller. It does nothing before [`Controller::subscribe`] and [`Controller::run`].
    fn new(context: Self::Context) -> Arc<Self>;

    /// Subscribes to changes of the cache and to messages, with
    /// [`subscribe_while`](cofferdam_cluster::ObjectStore::subscribe_while): the controller is first notified
    /// of every cached object.
    fn subscribe(self: &Arc<Self>);

    /// Processes the queues, and performs periodic work, until `stop`; the manager drops it at the end of the
    /// term. The manager calls it after the first list of every kind with a required watch
    /// ([`WatchSpec::required`]), and in a process with the provisioner after the drivers' journals are
    /// loaded.
    fn run(self: Arc<Self>, stop: CancellationToken) -> impl Future<Output = ()> + Send;
}

/// The declaration of a controller.
pub(crate) trait DeclaredController: Controller {
    /// The controller's name in `--role`.
    const ROLE: Role;
    /// One line for help texts: the objects that the controller acts on, and the result.
    const HELP: &'static str;
    /// The CSI sidecar, or the controller of kube-controller-manager, that this controller replaces.
    const REPLACES: &'static str;
    /// True if a process that has the role and no driver does not start.
    const NEEDS_DRIVER: bool = false;
    /// True if the controller creates and deletes volumes of the process's drivers. With such a controller,
    /// the manager loads the drivers' journals before it starts any controller of the process.
    const PROVISIONS: bool = false;
    /// Handles to the controller's metrics. They are registered once per process, and each new controller
    /// gets a clone.
    type Metrics: Clone + Send + Sync + 'static;

    /// Name of the Lease that excludes other processes with the role. A controller that needs a driver has
    /// one per driver: that of the sidecar that it replaces, so that the sidecar and this controller exclude
    /// each other. Other controllers ignore the driver.
    fn lease_name(_: &DriverName) -> String {
        format!("cofferdam-{}", Self::ROLE)
    }

    /// Rejects settings and drivers that the controller cannot work with.
    ///
    /// # Errors
    /// [`ControllerManagerError`] with the driver or the setting.
    fn check(_: &Settings, _: &[Arc<dyn Backend>]) -> Result<(), ControllerManagerError> {
        Ok(())
    }

    /// Watches of the kinds that the controller reads from the cache, beside those of
    /// [`crate::watches::common`], with these settings and drivers.
    fn watches(settings: &Settings, backends: &[Arc<dyn Backend>]) -> Vec<WatchSpec>;

    /// RBAC rules that the controller needs in addition to those of every process. They suffice for all
    /// settings, and for all abilities of drivers with this placement.
    fn rbac_rules(placement: DriverPlacement) -> RuleSet;

    /// Registers the controller's metrics.
    fn register_metrics(registry: &mut Registry) -> Self::Metrics;

    /// Takes the dependencies of the controller from the process.
    fn context(process: &ProcessContext, metrics: Self::Metrics) -> Self::Context;
}

/// A controller as a row of [`CONTROLLERS`](crate::table::CONTROLLERS).
#[derive(Clone, Copy, Debug)]
pub struct Declaration {
    /// The controller's name in `--role`.
    pub role: Role,
    /// One line for help texts.
    pub help: &'static str,
    /// The CSI sidecar, or the controller of kube-controller-manager, that this controller replaces.
    pub replaces: &'static str,
    /// True if a process that has the role and no driver does not start.
    pub needs_driver: bool,
    /// True if the controller creates and deletes volumes of the process's drivers.
    pub provisions: bool,
    pub(crate) lease_name: fn(&DriverName) -> String,
    pub(crate) check: Check,
    pub(crate) watches: Watches,
    pub(crate) rbac_rules: fn(DriverPlacement) -> RuleSet,
    pub(crate) register: fn(&mut Registry) -> Box<dyn ControllerFactory>,
}

impl Declaration {
    /// The row of the controller `C`.
    pub(crate) const fn of<C: DeclaredController>() -> Self {
        Self {
            role: C::ROLE,
            help: C::HELP,
            replaces: C::REPLACES,
            needs_driver: C::NEEDS_DRIVER,
            provisions: C::PROVISIONS,
            lease_name: C::lease_name,
            check: C::check,
            watches: C::watches,
            rbac_rules: C::rbac_rules,
            register: register::<C>,
        }
    }
}

fn register<C: DeclaredController>(registry: &mut Registry) -> Box<dyn ControllerFactory> {
    Box::new(RegisteredController::<C>(C::register_metrics(registry)))
}

/// Creates a controller for each term.
pub(crate) trait ControllerFactory: Send + Sync {
    /// Creates the controller and subscribes it.
    fn create(&self, process: &ProcessContext) -> Arc<dyn RunController>;
}

struct RegisteredController<C: DeclaredController>(C::Metrics);

impl<C: DeclaredController> ControllerFactory for RegisteredController<C> {
    fn create(&self, process: &ProcessContext) -> Arc<dyn RunController> {
        let controller = C::new(C::context(process, self.0.clone()));
        controller.subscribe();
        controller
    }
}

/// [`Controller::run`] as an object-safe trait.
pub(crate) trait RunController: Send + Sync {
    /// As [`Controller::run`].
    fn run(self: Arc<Self>, stop: CancellationToken) -> BoxFuture<'static, ()>;
}

impl<C: Controller> RunController for C {
    fn run(self: Arc<Self>, stop: CancellationToken) -> BoxFuture<'static, ()> {
        Box::pin(Controller::run(self, stop))
    }
}
