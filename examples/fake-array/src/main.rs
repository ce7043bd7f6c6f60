//! The fake array as a program: `cofferdam-fake-array [address]`. The default address is 127.0.0.1:8081. The
//! user is `admin`; the password is the environment variable `FAKE_ARRAY_PASSWORD`, or `secret`.
#![forbid(unsafe_code)]

use std::{env, error::Error, io::Write as _, net::SocketAddr};

use cofferdam_fake_array::{Array, FakeArray};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8081".to_owned());
    let address: SocketAddr = address.parse().map_err(|_| {
        format!("the address is {address:?}; expected an IP address and a port, such as 127.0.0.1:8081")
    })?;
    let password = env::var("FAKE_ARRAY_PASSWORD").unwrap_or_else(|_| "secret".to_owned());
    let (url, _array) = FakeArray::start_with(address, Array::new("admin", &password)).await?;
    writeln!(std::io::stdout(), "{url}")?;
    tokio::signal::ctrl_c().await?;
    Ok(())
}
