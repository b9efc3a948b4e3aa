package cgroups

import (
	"bytes"
	"errors"
	"fmt"
	"math"
)

// The parsers take the bytes of a kernel file and allocate nothing on the way, as they run for every pod at every
// sample.

var errFormat = errors.New("unexpected format")

// NoLimit stands for "max" and for v1's way to say it, the largest multiple of the page size.
const NoLimit = math.MaxUint64

// ParseNumber reads a file with one number or "max".
func ParseNumber(b []byte) (uint64, error) {
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

// parseCPUMax reads v2's cpu.max: "max 100000" or "50000 100000", both in microseconds. The first may be [NoLimit].
func parseCPUMax(data []byte) (quota, period uint64, err error) {
	first, second, _ := bytes.Cut(bytes.TrimSpace(data), []byte{' '})
	if quota, err = ParseNumber(first); err != nil {
		return 0, 0, err
	}
	period, err = ParseNumber(second)
	return quota, period, err
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

var newline = []byte{'\n'}

// word cuts off the first word of a file in which blanks and ends of lines stand between them.
func word(data []byte) (first, rest []byte) {
	if i := bytes.IndexAny(data, " \n"); i >= 0 {
		return data[:i], data[i+1:]
	}
	return data, nil
}

// fields calls fn for each "key value" line.
func fields(data []byte, fn func(key []byte, value uint64)) {
	for len(data) > 0 {
		var line []byte
		line, data, _ = bytes.Cut(data, newline)
		i := bytes.IndexByte(line, ' ')
		if i <= 0 {
			continue
		}
		if v, ok := atou(bytes.TrimSpace(line[i+1:])); ok {
			fn(line[:i], v)
		}
	}
}

// field looks one key up and parses no other's value; 0 when it is not there. data does not escape.
func field(data []byte, key string) uint64 {
	for len(data) > 0 {
		line := data
		if end := bytes.IndexByte(data, '\n'); end >= 0 {
			line, data = data[:end], data[end+1:]
		} else {
			data = nil
		}
		if len(line) > len(key) && line[len(key)] == ' ' && string(line[:len(key)]) == key {
			v, _ := atou(bytes.TrimSpace(line[len(key):]))
			return v
		}
	}
	return 0
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
		var w []byte
		w, data = word(data)
		switch string(w) {
		case "":
		case "some":
			s = &p.Some
		case "full":
			s = &p.Full
		default:
			if s == nil {
				return fmt.Errorf("pressure %q: %w", w, errFormat)
			}
			if err := s.set(w); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Stall) set(word []byte) error {
	key, value, ok := bytes.Cut(word, []byte{'='})
	if !ok {
		return fmt.Errorf("pressure %q: %w", word, errFormat)
	}
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
	whole, frac, fixed := bytes.Cut(b, []byte{'.'})
	if fixed && (len(frac) == 0 || len(frac) > 9) {
		return 0, false
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
		var w []byte
		w, data = word(data)
		key, value, ok := bytes.Cut(w, []byte{'='})
		if !ok {
			continue
		}
		v, ok := atou(value)
		if !ok {
			continue
		}
		switch string(key) {
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
		var line []byte
		line, data, _ = bytes.Cut(data, newline)
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
