package cgroups

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

const hybridMountinfo = `23 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:2 master:1 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,release_agent=/lib/systemd/systemd-cgroups-agent,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
99 23 0:99 / /other/cgroup rw - cgroup2 cgroup2 rw
98 23 0:99 /part /sys/fs/cgroup/with\040space rw - cgroup none rw,pids
`

func TestParseMountinfo(t *testing.T) {
	got, err := parseMountinfo(strings.NewReader(hybridMountinfo), "/sys/fs/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	want := []mount{
		{dir: "/sys/fs/cgroup/cpu,cpuacct", root: "/", controllers: []string{"cpu", "cpuacct"}},
		{dir: "/sys/fs/cgroup/memory", root: "/", controllers: []string{"memory"}},
		{dir: "/sys/fs/cgroup/systemd", root: "/", controllers: []string{"name=systemd"}},
		{dir: "/sys/fs/cgroup/unified", root: "/", unified: true},
		{dir: "/sys/fs/cgroup/with space", root: "/part", controllers: []string{"pids"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestParseProcCgroup(t *testing.T) {
	got, err := ParseProcCgroup(strings.NewReader("4:memory:/a:b\n2:cpu,cpuacct:/x (deleted)\n1:name=systemd:/\n0::/u\nrubbish\n"))
	want := map[string]string{"memory": "/a:b", "cpu": "/x", "cpuacct": "/x", "name=systemd": "/", "": "/u"}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestParseNumber(t *testing.T) {
	for in, want := range map[string]uint64{
		"0\n": 0, "42\n": 42, "max\n": NoLimit,
		"9223372036854771712\n":  NoLimit, // v1's word for no limit with 4 KiB pages
		"18446744073709551615\n": NoLimit,
	} {
		if got, err := ParseNumber([]byte(in)); err != nil || got != want {
			t.Errorf("%q = %d, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "-1", "1 2", "99999999999999999999999", "0x10"} {
		if got, err := ParseNumber([]byte(in)); err == nil {
			t.Errorf("%q = %d, want an error", in, got)
		}
	}
}

func TestParsePressure(t *testing.T) {
	var p Pressure
	err := parsePressure([]byte("some avg10=1.50 avg60=0.25 avg300=0.00 total=123\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=7\n"), &p)
	want := Pressure{Some: Stall{Avg10: 1.5, Avg60: 0.25, TotalUs: 123}, Full: Stall{Avg10: 0.5, TotalUs: 7}}
	if err != nil || p != want {
		t.Errorf("got %+v, %v", p, err)
	}
	for _, in := range []string{"avg10=1", "some avg10", "some avg10=1.", "some avg10=-1", "some avg10=NaN", "some total=1.5"} {
		if err := parsePressure([]byte(in), &p); err == nil {
			t.Errorf("%q was taken", in)
		}
	}
}

func TestParseIO(t *testing.T) {
	var io IO
	parseIOStat([]byte("8:0 rbytes=100 wbytes=20 rios=3 wios=4 dbytes=0 dios=0\n254:0 rbytes=1 wbytes=2 rios=3 wios=4\n7:0 \n"), &io)
	if want := (IO{ReadBytes: 101, WriteBytes: 22, ReadOps: 6, WriteOps: 8}); io != want {
		t.Errorf("io.stat = %+v", io)
	}
	r, w := parseBlkio([]byte("254:0 Read 100\n254:0 Write 20\n254:0 Sync 5\n254:0 Total 120\n8:0 Read 1\nTotal 121\n"))
	if r != 101 || w != 20 {
		t.Errorf("blkio = %d, %d", r, w)
	}
}

func FuzzMountinfo(f *testing.F) {
	f.Add(hybridMountinfo, "/sys/fs/cgroup")
	f.Add(`1 2 3:4 / /\1340\04 rw - cgroup x cpu`, "/")
	f.Fuzz(func(t *testing.T, text, base string) {
		mounts, err := parseMountinfo(strings.NewReader(text), base)
		if err != nil {
			return
		}
		for _, m := range mounts {
			if !m.unified && len(m.controllers) == 0 {
				t.Errorf("v1 mount without a controller: %+v", m)
			}
			if !strings.HasPrefix(m.dir, base) {
				t.Errorf("%q is not below %q", m.dir, base)
			}
		}
	})
}

func FuzzProcCgroup(f *testing.F) {
	f.Add([]byte("4:memory:/a\n0::/\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		groups, _ := ParseProcCgroup(bytes.NewReader(data))
		for c, p := range groups {
			if !strings.HasPrefix(p, "/") {
				t.Errorf("group of %q is %q", c, p)
			}
		}
	})
}

// FuzzStatFiles feeds every parser of measured files: none may panic, and none may invent a number for what is not one.
func FuzzStatFiles(f *testing.F) {
	f.Add([]byte("nr_periods 5\nnr_throttled 3\nthrottled_time 99\n"))
	f.Add([]byte("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"))
	f.Add([]byte("8:0 rbytes=1 wbytes=2 rios=3 wios=4\n"))
	f.Add([]byte("254:0 Read 1\nTotal 1\n"))
	f.Add([]byte("max\n"))
	f.Add([]byte("-1\n1 2 3\n \n=\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := Sampler{}
		for _, list := range [][]statSource{v1Sources(), v2Sources(), s.pressureSources()} {
			for _, src := range list {
				var u Usage
				_ = src.read(data, &u)
			}
		}
		for _, pid := range ParsePids(data) {
			if pid <= 0 {
				t.Errorf("%q has process %d", data, pid)
			}
		}
		if quota, period, err := parseCPUMax(data); err == nil && quota == 0 && period == 0 && !bytes.Contains(data, []byte("0")) {
			t.Errorf("%q is a quota of nothing", data)
		}
		// By device it must be what it is together, less what has no device's number before it.
		var sum, all IO
		parseIOStat(data, &all)
		for _, d := range devicesOfIOStat(data) {
			sum.ReadBytes += d.ReadBytes
		}
		if sum.ReadBytes > all.ReadBytes && all.ReadBytes < 1<<62 {
			t.Errorf("%q: devices read %d, all together %d", data, sum.ReadBytes, all.ReadBytes)
		}
		devicesOfBlkio(data, data)
		if n, err := ParseNumber(data); err == nil && n != NoLimit && !bytes.ContainsAny(data, "0123456789") {
			t.Errorf("%q = %d", data, n)
		}
	})
}
