package keeper

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// HelperForTest builds the helper binary; the package's other tests bring it.
var HelperForTest func() (string, error)

// TestKeeperSurvivesHostileMessages sends what no agent would: messages that
// are cut, mixed up, or lie about their lengths and files. Only root can, but a
// keeper that dies takes its pod along.
func TestKeeperSurvivesHostileMessages(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: a keeper")
	}
	helper, err := HelperForTest()
	if err != nil {
		t.Fatal(err)
	}
	f, err := OpenHelper(helper)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	k, err := Start(t.Context(), Config{ID: "hostile", Dir: dir, Helper: f})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := k.Stop(ctx); err != nil {
			t.Error(err)
		}
	}()
	// Without a bundle there is none, but the keeper goes all the way.
	_, _ = k.Run(t.Context(), Container{ID: "c", Bundle: dir, StateDir: dir})
	before := countFiles(t, k)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 4000 {
		hostile(t, rng, dir)
		if i%1000 == 0 {
			if _, err := Open(t.Context(), "hostile", dir); err != nil {
				t.Fatalf("after %d messages: %v", i, err)
			}
		}
	}
	if n, err := Open(t.Context(), "hostile", dir); err != nil || n.Pid() != k.Pid() {
		t.Fatalf("after all: %v", err)
	}
	for deadline := time.Now().Add(time.Minute); countFiles(t, k) > before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("keeper has %d files, had %d", countFiles(t, k), before)
		}
	}
}

func countFiles(t *testing.T, k *Keeper) int {
	l, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", k.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	return len(l)
}

func hostile(t *testing.T, rng *rand.Rand, dir string) {
	c, err := dial(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ops := []op{opHello, opRun, opWatch, opForget, opExec, opSignal, opAttach, opData, opResize, opReopen, opStdinEOF, opOK, opExit, 999}
	for range 1 + rng.IntN(3) {
		var p fields
		for range rng.IntN(8) {
			junk := make([]byte, rng.IntN(40))
			for i := range junk {
				junk[i] = byte(rng.IntN(256))
			}
			switch t := tag(rng.IntN(70)); rng.IntN(4) {
			case 0:
				p.str(tagID, []string{"../../x"[:rng.IntN(8)], "c"}[rng.IntN(2)])
			case 1:
				p.u32(t, rng.Uint32())
			default:
				p.bytes(t, junk)
			}
		}
		b := append(header(ops[rng.IntN(len(ops))], rng.Uint32()&3, len(p)), p...)
		switch rng.IntN(6) {
		case 0: // a bit flips
			b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
		case 1: // it ends early
			b = b[:rng.IntN(len(b)+1)]
		case 2: // it says its payload is elsewhere
			b[11] |= 0x80
		}
		if b = noStop(b); len(b) == 0 {
			continue
		}
		if rng.IntN(3) == 0 {
			b = withFiles(t, rng, c, b)
		}
		if b != nil {
			_, _ = c.Write(b)
		}
	}
}

// noStop keeps chance from ending the keeper.
func noStop(b []byte) []byte {
	if len(b) >= headerSize && b[6] == byte(opStop) && b[7] == 0 {
		b[6] = byte(opHello)
	}
	return b
}

// withFiles sends the message with files, and perhaps a sealed payload among
// them; it returns nil when it did.
func withFiles(t *testing.T, rng *rand.Rand, c interface {
	WriteMsgUnix(b, oob []byte, addr *net.UnixAddr) (int, int, error)
}, b []byte,
) []byte {
	var fds []int
	for range 1 + rng.IntN(6) {
		fd, err := unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if rng.IntN(2) == 0 && len(b) > headerSize {
			_, _ = unix.Write(fd, b[headerSize:])
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_WRITE)
		}
		fds = append(fds, fd)
	}
	if rng.IntN(2) == 0 && len(b) > headerSize && b[11]&0x80 != 0 {
		b = b[:headerSize]
	}
	_, _, _ = c.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
	return nil
}
