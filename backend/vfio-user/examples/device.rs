//! The device that this crate is tested with, served on a socket, and a client that looks at it.

use std::thread;

use ibvswitch_vfio_user::client::Client;
use ibvswitch_vfio_user::testing::{BAR, Dummy, VECTORS};
use ibvswitch_vfio_user::{Server, Stop};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("device.sock");
    let mut server = Server::bind(&socket)?;
    let stop = Stop::new()?;
    let stopped = stop.clone();
    let mut device = Dummy::new()?;
    let serving = thread::spawn(move || server.run(&mut device, &stopped));

    let mut client = Client::connect(&socket)?;
    println!(
        "{:?}, {:?}",
        client.device_info()?,
        client.region_info(BAR)?
    );
    println!("{VECTORS} vectors");
    drop(client);
    stop.signal();
    serving.join().expect("ends")?;
    Ok(())
}

#[test]
fn runs() {
    main().expect("a device that is served");
}
