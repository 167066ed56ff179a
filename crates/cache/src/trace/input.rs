//! A trace's bytes as counted lines or records, decompressed if needed.
//!
//! A compressed file is a series of Zstandard frames, including skippable ones, or of gzip members.
//! Checksums are verified. Memory is one buffer, one line, and the frame's window of at most
//! 128 MiB.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::event::LINE_BYTES_MAX;
use super::format::{Compression, Format};

const BUFFER_BYTES: usize = 128 << 10;

/// The first bytes of compressed files.
const MAGICS: [(&[u8], &str, &str); 2] =
    [(b"\x1f\x8b\x08", "gzip", "gz"), (b"\x28\xb5\x2f\xfd", "Zstandard", "zst")];

pub(super) struct Input {
    reader: Box<dyn BufRead + Send>,
    format: Format,
    line: Vec<u8>,
    /// From 1 on.
    number: u64,
}

impl Input {
    pub(super) fn new(
        reader: impl Read + Send + 'static,
        format: Format,
        bytes_read: Arc<AtomicU64>,
    ) -> Input {
        let file = BufReader::with_capacity(BUFFER_BYTES, Counted { reader, bytes_read });
        let reader: Box<dyn BufRead + Send> = match format.compression {
            Compression::None => Box::new(file),
            Compression::Zstandard => Box::new(BufReader::with_capacity(BUFFER_BYTES, Frames::new(file))),
            Compression::Gzip => {
                Box::new(BufReader::with_capacity(BUFFER_BYTES, Members(MultiGzDecoder::new(file))))
            }
        };
        Input { reader, format, line: Vec::new(), number: 0 }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The next line without its end; none at the end.
    pub(super) fn line(&mut self) -> io::Result<Option<&[u8]>> {
        self.number += 1;
        self.line.clear();
        let mut limited = Read::take(&mut self.reader, LINE_BYTES_MAX as u64 + 1);
        if limited.read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        if self.number == 1 {
            self.check_plain()?;
        }
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        } else if self.line.len() > LINE_BYTES_MAX {
            return Err(invalid(format!("it is longer than {LINE_BYTES_MAX} bytes")));
        }
        Ok(Some(&self.line))
    }

    /// Refuses a first line of compressed data.
    #[cold]
    fn check_plain(&self) -> io::Result<()> {
        match MAGICS.iter().find(|(magic, ..)| self.line.starts_with(magic)) {
            Some((_, name, ending)) if self.format.compression == Compression::None => Err(invalid(format!(
                "the data are compressed by {name}; read them with --format {}.{ending}",
                self.format
            ))),
            _ => Ok(()),
        }
    }

    /// The next record of `N` bytes; none at the end.
    #[inline]
    pub(super) fn record<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        self.number += 1;
        self.rest()
    }

    /// The next `N` bytes of the same record; none at the end.
    #[inline]
    pub(super) fn rest<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        let buffer = self.reader.fill_buf()?;
        if let Some((record, _)) = buffer.split_first_chunk::<N>() {
            let record = *record;
            self.reader.consume(N);
            return Ok(Some(record));
        }
        self.split_record()
    }

    /// A record across two buffers.
    fn split_record<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        let mut record = [0; N];
        let mut length = 0;
        while length < N {
            match self.reader.read(&mut record[length..]) {
                Ok(0) if length == 0 => return Ok(None),
                Ok(0) => return Err(invalid(format!("it ends after {length} of its {N} bytes"))),
                Ok(bytes) => length += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(record))
    }
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

struct Counted<R> {
    reader: R,
    bytes_read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.reader.read(buffer)?;
        advance(&self.bytes_read, bytes);
        Ok(bytes)
    }
}

struct Members<R>(MultiGzDecoder<R>);

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof => {
                invalid(format!("the compressed data are damaged, or are no gzip data: {error}"))
            }
            _ => error,
        })
    }
}

struct Frames<R> {
    source: R,
    decoder: FrameDecoder,
    in_frame: bool,
    /// No frame has begun.
    is_new: bool,
}

impl<R: BufRead> Frames<R> {
    fn new(source: R) -> Frames<R> {
        Frames { source, decoder: FrameDecoder::new(), in_frame: false, is_new: true }
    }

    /// `false` if there is none.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => {
                    (self.in_frame, self.is_new) = (true, false);
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skipped =
                        io::copy(&mut Read::take(&mut self.source, length.into()), &mut io::sink())?;
                    if skipped < length.into() {
                        return Err(invalid("the compressed file ends inside a frame".to_owned()));
                    }
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::BadMagicNumber(_))) => {
                    return Err(invalid(match self.is_new {
                        true => "the data are not compressed by Zstandard".to_owned(),
                        false => "the compressed data are damaged: no frame begins after another".to_owned(),
                    }));
                }
                Err(error) => return Err(damaged(&error)),
            }
        }
        Ok(false)
    }

    /// Checks that the frame is complete.
    fn end(&mut self) -> io::Result<()> {
        self.in_frame = false;
        let (told, found) = (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum());
        match told {
            Some(told) if Some(told) != found => {
                Err(invalid("the checksum of a compressed frame does not hold".to_owned()))
            }
            _ => Ok(()),
        }
    }
}

fn damaged(error: &FrameDecoderError) -> io::Error {
    invalid(format!("the compressed data are damaged: {error}"))
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.in_frame && !self.begin()? {
                return Ok(0);
            }
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            if self.decoder.is_finished() {
                self.end()?;
                continue;
            }
            let strategy = BlockDecodingStrategy::UptoBlocks(1);
            self.decoder.decode_blocks(&mut self.source, strategy).map_err(|error| damaged(&error))?;
        }
    }
}

/// Updates the counter of [`Trace::bytes_read`](super::Trace::bytes_read).
fn advance(counter: &AtomicU64, bytes: usize) {
    // Relaxed: only for display.
    counter.fetch_add(bytes as u64, Ordering::Relaxed);
}
