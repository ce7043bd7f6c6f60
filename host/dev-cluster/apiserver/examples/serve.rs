//! Serves an empty API on a free loopback port until Ctrl-C. The first argument is the path of the kubeconfig
//! to write.

use cofferdam_apiserver::{ApiServer, Options, ServeOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("the path of the kubeconfig to write was expected")?;
    let serving = ApiServer::new(Options::default()).serve(ServeOptions::default()).await?;
    std::fs::write(&path, serving.kubeconfig())?;
    tokio::signal::ctrl_c().await?;
    serving.shutdown().await;
    Ok(())
}
