//! Content codings: which one a client wants (RFC 9110, section 12.5.3), and making it.

use std::io::Write;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use towpath_proto::format::media_type;

/// A coding that we make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// `zstd`.
    Zstd = 0,
    /// `br`.
    Brotli = 1,
    /// `gzip`.
    Gzip = 2,
}

impl Coding {
    /// Number of codings.
    pub const COUNT: usize = 3;

    /// All of them, the quickest to make and to read first.
    const ALL: [Self; Self::COUNT] = [Self::Zstd, Self::Brotli, Self::Gzip];

    /// Its name in headers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }
}

/// Returns true if the media type in the headers compresses well.
pub fn is_text(headers: &HeaderMap) -> bool {
    let Some(media_type) = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()) else { return false };
    // Parameters such as a multipart boundary must not decide.
    let essence = media_type::essence(media_type);
    essence.starts_with("text/")
        || essence.starts_with("multipart/")
        || ["json", "xml", "javascript"].iter().any(|kind| essence.ends_with(kind))
}

/// The coding to use for an `Accept-Encoding` header: the one with the highest weight, the quickest among equals;
/// `None` for the body as it is.
pub fn choose(accept: Option<&HeaderValue>) -> Option<Coding> {
    let accept = accept?.to_str().ok()?;
    let mut best: Option<(f32, Coding)> = None;
    let mut any = None;
    let mut named = [false; Coding::COUNT];
    for part in accept.split(',') {
        let (name, weight) = weighted(part);
        let coding = match name {
            name if name.eq_ignore_ascii_case("zstd") => Coding::Zstd,
            name if name.eq_ignore_ascii_case("br") => Coding::Brotli,
            // `x-gzip` is to be treated as `gzip` (RFC 9110, section 8.4.1.3).
            name if name.eq_ignore_ascii_case("gzip") || name.eq_ignore_ascii_case("x-gzip") => Coding::Gzip,
            "*" => {
                any = Some(weight);
                continue;
            }
            _ => continue,
        };
        named[coding as usize] = true;
        best = better(best, weight, coding);
    }
    // After the whole list: `*` stands for what is not named anywhere in it (RFC 9110, section 12.5.3).
    if let Some(weight) = any {
        for coding in Coding::ALL {
            if !named[coding as usize] {
                best = better(best, weight, coding);
            }
        }
    }
    best.map(|(_, coding)| coding)
}

fn better(best: Option<(f32, Coding)>, weight: f32, coding: Coding) -> Option<(f32, Coding)> {
    let beaten = match best {
        None => weight > 0.0,
        Some((old, old_coding)) => {
            weight > old || (weight == old && (coding as usize) < (old_coding as usize))
        }
    };
    if beaten { Some((weight, coding)) } else { best }
}

/// `gzip;q=0.5` as its name and weight; a weight that is none counts as zero.
fn weighted(part: &str) -> (&str, f32) {
    let mut pieces = part.split(';').map(str::trim);
    let name = pieces.next().unwrap_or_default();
    let weight = pieces.find_map(|p| p.strip_prefix("q=").or_else(|| p.strip_prefix("Q=")));
    (name, weight.map_or(1.0, |q| q.parse().unwrap_or(0.0)))
}

/// Compressor that no thread uses. Its tables, a megabyte or two, take longer to make than a page to compress.
static SPARE: Mutex<Option<zstd::bulk::Compressor<'static>>> = Mutex::new(None);

fn zstd(body: &[u8]) -> std::io::Result<Vec<u8>> {
    let spare = || SPARE.lock().unwrap_or_else(PoisonError::into_inner);
    let taken = spare().take();
    let mut compressor = taken.map_or_else(|| zstd::bulk::Compressor::new(3), Ok)?;
    let mut compressed = compressor.compress(body)?;
    *spare() = Some(compressor);
    // It has room for a body that cannot be compressed.
    compressed.shrink_to_fit();
    Ok(compressed)
}

fn brotli(body: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = brotli::CompressorWriter::new(Vec::with_capacity(body.len() / 3), 64 << 10, 4, 20);
    encoder.write_all(body)?;
    Ok(encoder.into_inner())
}

fn gzip(body: &[u8]) -> std::io::Result<Vec<u8>> {
    let out = Vec::with_capacity(body.len() / 3);
    let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::new(5));
    encoder.write_all(body)?;
    encoder.finish()
}

/// The body in a coding; `None` where that is no shorter.
pub fn compress(body: &[u8], coding: Coding) -> Option<Bytes> {
    // Levels 3, 4 and 5: a body is compressed while a client waits, though only once per version.
    let compressed = match coding {
        Coding::Zstd => zstd(body),
        Coding::Brotli => brotli(body),
        Coding::Gzip => gzip(body),
    };
    compressed.ok().filter(|compressed| compressed.len() < body.len()).map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn the_highest_weight_wins() {
        let choose = |text: &str| choose(Some(&HeaderValue::from_str(text).unwrap()));
        assert_eq!(choose("gzip, deflate, br"), Some(Coding::Brotli));
        assert_eq!(choose("br;q=0.5, gzip"), Some(Coding::Gzip));
        assert_eq!(choose("gzip;q=0"), None);
        assert_eq!(choose("identity"), None);
        assert_eq!(choose("gzip, deflate, br, zstd"), Some(Coding::Zstd));
        assert_eq!(choose("*"), Some(Coding::Zstd));
        // A coding with weight zero is refused, and `*` does not bring it back.
        assert_eq!(choose("*, zstd;q=0, br;q=0"), Some(Coding::Gzip));
        assert_eq!(choose("gzip;q=x"), None);
        assert_eq!(choose(""), None);
    }

    #[test]
    fn what_is_compressed_comes_back() {
        let text = "some text, again and again. ".repeat(500);
        let gzip = compress(text.as_bytes(), Coding::Gzip).unwrap();
        let mut back = String::new();
        flate2::read::GzDecoder::new(&gzip[..]).read_to_string(&mut back).unwrap();
        assert_eq!(back, text);
        let br = compress(text.as_bytes(), Coding::Brotli).unwrap();
        back.clear();
        brotli::Decompressor::new(&br[..], 4096).read_to_string(&mut back).unwrap();
        assert_eq!(back, text);
        let zstd = compress(text.as_bytes(), Coding::Zstd).unwrap();
        assert_eq!(zstd::stream::decode_all(&zstd[..]).unwrap(), text.as_bytes());
        // gzip's header alone is longer than that.
        assert_eq!(compress(b"x", Coding::Gzip), None);
    }
}
