package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/berth-node/berth/internal/atomicfile"
)

// maxSingle bounds what is read of a file with one record.
const maxSingle = 16 << 20

// WriteFile replaces the file at path by one with a single record, as a line of the records has it. It is for a second
// place of a record: with what the record describes. Of one path there is one writer at a time.
func WriteFile[T any](path, table, key string, row Row[T]) error {
	line := compose(func(yield func(change)) { yield(change{table: table, key: key, value: row.json}) })
	if err := atomicfile.Write(path, line, 0o600); err != nil {
		return fmt.Errorf("write record %q: %w", key, err)
	}
	return nil
}

// ReadFile reads what [WriteFile] has written. It fails with [os.ErrNotExist] where there is no file.
func ReadFile(path, table, key string, row any) error {
	if err := readSingle(path, table, key, row); err != nil {
		return fmt.Errorf("read record %q: %w", key, err)
	}
	return nil
}

func readSingle(path, table, key string, row any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSingle))
	if err != nil {
		return err
	}
	c, err := parse(b)
	if err != nil {
		return err
	}
	line, ok := c.latest[id{table, key}]
	if !ok || line.value == nil || c.bad > 0 {
		return fmt.Errorf("%s: %w", path, errDamaged)
	}
	if err := json.Unmarshal(line.value, row); err != nil {
		return fmt.Errorf("%s: %w", path, errors.Join(errDamaged, err))
	}
	return nil
}
