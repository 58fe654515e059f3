//! Multipart pages: the first byte selects how the input is cut, which must not matter.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_proto::format::multipart::{ContentType, Entity, EntityError, EntityReader};

fn read(body: &[u8], size: usize) -> (Vec<Entity>, Option<EntityError>) {
    let content_type = ContentType { boundary: "B".into() };
    let mut reader = EntityReader::new(&content_type, 1 << 20).expect("a boundary");
    let mut entities = Vec::new();
    for piece in body.chunks(size).map(Some).chain([None]) {
        match piece {
            Some(piece) => reader.push(piece.to_vec().into()),
            None => reader.finish(),
        }
        loop {
            match reader.poll_entity() {
                Ok(Some(entity)) => entities.push(entity),
                Ok(None) => break,
                Err(error) => return (entities, Some(error)),
            }
        }
    }
    assert!(reader.is_complete());
    (entities, None)
}

fuzz_target!(|bytes: &[u8]| {
    let Some((size, body)) = bytes.split_first() else { return };
    // The reading in one piece is what every other cut must equal.
    let whole = read(body, body.len().max(1));
    assert_eq!(whole, read(body, usize::from(*size).max(1)));
    let text = String::from_utf8_lossy(body);
    let _ = ContentType::parse(&text);
});
