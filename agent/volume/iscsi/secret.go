package iscsi

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/atomicfile"
)

// iscsiadm takes a value of a record as an argument, which every user of the node can read while it runs, and in no
// other way. So passwords are put into the file of the record, by the rules of open-iscsi: "name = value" a line.

// maxRecord is how long the file of a record may be, in bytes: it has some 5 KB.
const maxRecord = 64 << 10

// databases are where open-iscsi has its records, as it was built: Debian's, and that of most others.
var databases = []string{"/etc/iscsi", "/var/lib/iscsi"}

// record is one of open-iscsi's records.
type record struct {
	args  []string // by which iscsiadm knows it
	files []string // that it may be in, below the database
	has   []string // lines that are in no other's
}

// nodeRecordOf is the record of a target by one of its portals. With records of several interfaces the file of the
// portal is a directory.
func nodeRecordOf(disk diskRecord, portal string) record {
	at := filepath.Join("nodes", disk.IQN, recordName(portal))
	return record{
		args: nodeRecord(disk, portal), files: []string{at, filepath.Join(at, disk.Iface)},
		has: []string{"node.name = " + disk.IQN, "iface.iscsi_ifacename = " + disk.Iface},
	}
}

func discoveryRecordOf(portal string) record {
	return record{
		args: discoveryRecord(portal), files: []string{filepath.Join("send_targets", recordName(portal), "st_config")},
		has: []string{"discovery.type = sendtargets"},
	}
}

// recordName is a portal as files are called: an address, without brackets, and its port.
func recordName(portal string) string {
	at, err := netip.ParseAddrPort(portal)
	if err != nil {
		return portal
	}
	return fmt.Sprintf("%s,%d", at.Addr(), at.Port())
}

// file finds the file of a record; "": it is somewhere else, or cannot be told from another.
func (a *iscsiadm) file(r record) (path, database string, text []byte) {
	for _, db := range a.databases {
		for _, name := range r.files {
			at := filepath.Join(db, name)
			data, err := atomicfile.Read(at, maxRecord)
			if err != nil || !hasLines(data, r.has) {
				continue
			}
			if path != "" {
				return "", "", nil
			}
			path, database, text = at, db, data
		}
	}
	return path, database, text
}

func hasLines(text []byte, want []string) bool {
	left := slices.Clone(want)
	for line := range strings.Lines(string(text)) {
		left = slices.DeleteFunc(left, func(w string) bool { return w == strings.TrimSpace(line) })
	}
	return len(left) == 0
}

// put writes values into the file of a record; false: it is not known where that is.
func (a *iscsiadm) put(r record, values [][2]string) (bool, error) {
	path, database, text := a.file(r)
	if path == "" {
		return false, nil
	}
	// Beside the records it would be read as one. What a crash leaves is written over by the next try.
	sum := sha256.Sum256([]byte(path))
	part := filepath.Join(database, ".berth-"+hex.EncodeToString(sum[:8])+".part")
	err := os.Remove(part)
	if err == nil || os.IsNotExist(err) {
		err = writeNew(part, withValues(text, values))
	}
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		_ = os.Remove(part)
		return false, fmt.Errorf("write record of iSCSI: %w", err)
	}
	return true, nil
}

func writeNew(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// withValues are the lines of a record with these values in place of those of their names.
func withValues(text []byte, values [][2]string) []byte {
	var out bytes.Buffer
	for line := range strings.Lines(string(text)) {
		name, _, _ := strings.Cut(line, "=")
		if !slices.ContainsFunc(values, func(v [2]string) bool { return v[0] == strings.TrimSpace(name) }) {
			out.WriteString(strings.TrimRight(line, "\n") + "\n")
		}
	}
	for _, v := range values { // after the comment that ends the record, which is none to who reads it
		out.WriteString(v[0] + " = " + v[1] + "\n")
	}
	return out.Bytes()
}
