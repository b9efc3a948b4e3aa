package cgroups

import (
	"bytes"
	"errors"
	"fmt"
	"math"
)

// The parsers take the bytes of a kernel file and allocate nothing on the way, as they run for every pod at every sample.

var errFormat = errors.New("unexpected format")

// NoLimit stands for "max" and for v1's way to say it, the largest multiple of the page size.
const NoLimit = math.MaxUint64

// parseNumber reads a file with one number or "max".
func parseNumber(b []byte) (uint64, error) {
	b = bytes.TrimSpace(b)
	if string(b) == "max" {
		return NoLimit, nil
	}
	n, ok := atou(b)
	if !ok {
		return 0, fmt.Errorf("number %q: %w", b, errFormat)
	}
	if n >= math.MaxInt64-(1<<16) {
		return NoLimit, nil
	}
	return n, nil
}

// atou is strconv.ParseUint without the string.
func atou(b []byte) (uint64, bool) {
	if len(b) == 0 {
		return 0, false
	}
	var n uint64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		d := uint64(c - '0')
		if n > (math.MaxUint64-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	return n, true
}

// fields calls fn for each "key value" line.
func fields(data []byte, fn func(key []byte, value uint64)) {
	for len(data) > 0 {
		line := data
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			line, data = data[:i], data[i+1:]
		} else {
			data = nil
		}
		i := bytes.IndexByte(line, ' ')
		if i <= 0 {
			continue
		}
		if v, ok := atou(bytes.TrimSpace(line[i+1:])); ok {
			fn(line[:i], v)
		}
	}
}

// field looks one key up; 0 when it is not there.
func field(data []byte, key string) uint64 {
	var out uint64
	fields(data, func(k []byte, v uint64) {
		if string(k) == key {
			out = v
		}
	})
	return out
}

// parsePressure reads a PSI file:
//
//	some avg10=0.00 avg60=0.00 avg300=0.00 total=0
//	full avg10=0.00 avg60=0.00 avg300=0.00 total=0
//
// Kernels before 5.13 have no "full" line for the CPU.
func parsePressure(data []byte, p *Pressure) error {
	*p = Pressure{}
	var s *Stall
	for len(data) > 0 {
		word := data
		if i := bytes.IndexAny(data, " \n"); i >= 0 {
			word, data = data[:i], data[i+1:]
		} else {
			data = nil
		}
		switch string(word) {
		case "":
		case "some":
			s = &p.Some
		case "full":
			s = &p.Full
		default:
			if s == nil {
				return fmt.Errorf("pressure %q: %w", word, errFormat)
			}
			if err := s.set(word); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Stall) set(word []byte) error {
	before, after, ok0 := bytes.Cut(word, []byte{'='})
	if !ok0 {
		return fmt.Errorf("pressure %q: %w", word, errFormat)
	}
	key, value := before, after
	ok := true
	switch string(key) {
	case "avg10":
		s.Avg10, ok = atof(value)
	case "avg60":
		s.Avg60, ok = atof(value)
	case "avg300":
		s.Avg300, ok = atof(value)
	case "total":
		s.TotalUs, ok = atou(value)
	}
	if !ok {
		return fmt.Errorf("pressure %q: %w", word, errFormat)
	}
	return nil
}

// atof reads the kernel's fixed point numbers: digits, a dot, two digits.
func atof(b []byte) (float64, bool) {
	whole, frac := b, []byte(nil)
	if before, after, ok0 := bytes.Cut(b, []byte{'.'}); ok0 {
		whole, frac = before, after
		if len(frac) == 0 || len(frac) > 9 {
			return 0, false
		}
	}
	n, ok := atou(whole)
	if !ok {
		return 0, false
	}
	f := float64(n)
	scale := 1.0
	for _, c := range frac {
		if c < '0' || c > '9' {
			return 0, false
		}
		scale /= 10
		f += float64(c-'0') * scale
	}
	return f, true
}

// parseIOStat sums v2's io.stat over the devices: "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0".
func parseIOStat(data []byte, io *IO) {
	*io = IO{}
	for len(data) > 0 {
		word := data
		if i := bytes.IndexAny(data, " \n"); i >= 0 {
			word, data = data[:i], data[i+1:]
		} else {
			data = nil
		}
		i := bytes.IndexByte(word, '=')
		if i <= 0 {
			continue
		}
		v, ok := atou(word[i+1:])
		if !ok {
			continue
		}
		switch string(word[:i]) {
		case "rbytes":
			io.ReadBytes += v
		case "wbytes":
			io.WriteBytes += v
		case "rios":
			io.ReadOps += v
		case "wios":
			io.WriteOps += v
		}
	}
}

// parseBlkio sums a v1 blkio file over the devices: "8:0 Read 4096", and a last line "Total 4096".
func parseBlkio(data []byte) (read, write uint64) {
	for len(data) > 0 {
		line := data
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			line, data = data[:i], data[i+1:]
		} else {
			data = nil
		}
		i := bytes.LastIndexByte(line, ' ')
		if i <= 0 {
			continue
		}
		v, ok := atou(line[i+1:])
		if !ok {
			continue
		}
		switch {
		case bytes.HasSuffix(line[:i], []byte(" Read")):
			read += v
		case bytes.HasSuffix(line[:i], []byte(" Write")):
			write += v
		}
	}
	return read, write
}
