package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"google.golang.org/protobuf/proto"
)

// firstRecords is in how many records a log tells whose it is: its checksum is before that.
const firstRecords = 8

// Identity is which member of a cluster a store is that of, by what the store itself has.
type Identity struct {
	Name string
	// Address is by which the others reach it; empty: nobody does.
	Address              string
	PeerPort, ClientPort int
}

// Identify reads which member has a store. Nobody may have it open. Without one it fails with [fs.ErrNotExist].
func Identify(dir string) (Identity, error) {
	id, err := memberID(logIn(dir))
	if err != nil {
		return Identity{}, fmt.Errorf("find out whose store %s is: %w", dir, err)
	}
	m, err := readSelf(databaseIn(dir), id)
	// The database is a moment behind the log, and is made from it where it is not there: the cluster may not have
	// heard of a name yet, and hears of this one.
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Identity{}, fmt.Errorf("find out whose store %s is: %w", dir, err)
	}
	i := Identity{Name: m.Name}
	if i.Name == "" {
		i.Name = FirstName + "-" + strconv.FormatUint(id, 16)
	}
	for _, text := range m.PeerURLs {
		if host, port, ok := secureURL(text); ok {
			i.Address, i.PeerPort = host, port
		}
	}
	for _, text := range m.ClientURLs {
		if _, port, ok := secureURL(text); ok {
			i.ClientPort = port
		}
	}
	return i, nil
}

// memberID is the ID that each file of a log begins with.
func memberID(dir string) (uint64, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil {
		return 0, err
	}
	if len(files) == 0 {
		return 0, &fs.PathError{Op: "open", Path: dir, Err: fs.ErrNotExist}
	}
	if err := onlyFiles(dir); err != nil {
		return 0, err
	}
	f, err := os.Open(files[len(files)-1])
	if err != nil {
		return 0, err
	}
	defer f.Close()
	from := wal.NewDecoder(fileutil.NewFileReader(f))
	for range firstRecords {
		var r walpb.Record
		if err := from.Decode(&r); err != nil {
			return 0, fmt.Errorf("read log %s: %w", f.Name(), err)
		}
		switch r.GetType() {
		case wal.CrcType:
			from.UpdateCRC(r.GetCrc())
		case wal.MetadataType:
			var m etcdserverpb.Metadata
			if err := proto.Unmarshal(r.GetData(), &m); err != nil {
				return 0, fmt.Errorf("read log %s: %w", f.Name(), err)
			}
			return m.GetNodeID(), nil
		}
	}
	return 0, fmt.Errorf("read log %s: it does not begin with whose it is", f.Name())
}

// readSelf is what a database has of a member; nothing, if it does not know of it.
func readSelf(path string, id uint64) (m membership.Member, err error) {
	err = withDatabase(path, func(tx *bbolt.Tx) error {
		b := tx.Bucket(schema.Members.Name())
		if b == nil {
			return nil
		}
		text := b.Get([]byte(strconv.FormatUint(id, 16)))
		if text == nil {
			return nil
		}
		return json.Unmarshal(text, &m)
	})
	return m, err
}

func secureURL(text string) (host string, port int, ok bool) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" {
		return "", 0, false
	}
	host, digits, err := net.SplitHostPort(u.Host)
	if err != nil {
		return "", 0, false
	}
	port, err = strconv.Atoi(digits)
	return host, port, err == nil
}
