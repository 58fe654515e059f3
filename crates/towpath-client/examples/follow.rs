//! Follows the feed at a URL and prints each change: `cargo run -p towpath-client --example follow -- URL`.

use towpath_client::{Follow, FollowEvent, StartFrom};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("usage: follow URL")?;
    let mut feed = Follow::new(url).start(StartFrom::Beginning).open().await?;
    eprintln!("following {} by {}", feed.url(), feed.protocol());
    while let Some(event) = feed.next().await? {
        match event {
            FollowEvent::Change(change) => println!("{:?} {}", change.op, change.item.id),
            // A program would store this together with the changes before it, to resume from.
            FollowEvent::Reset(reset) => println!("began anew: {}", reset.feed),
            FollowEvent::Checkpoint(_) => {}
            FollowEvent::Notice(notice) => eprintln!("{notice:?}"),
            _ => {}
        }
    }
    Ok(())
}
