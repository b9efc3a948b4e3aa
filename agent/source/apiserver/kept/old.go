package kept

import (
	"encoding/json"
	"fmt"
)

// oldContent is what a file of the format before has, all of it sealed as one.
type oldContent struct {
	Pods    [][]byte `json:"pods"`
	Objects []item   `json:"objects"`
	// Of lists which objects each of the pods needs.
	Of [][]int `json:"of"`
}

// readOld makes one change of such a file: after an upgrade the machine may boot without its API server, too.
func (l *log) readOld(head, sealed []byte) (c change, err error) {
	plain, err := l.key.open(sealed, head)
	if err != nil {
		return c, err
	}
	var old oldContent
	if err := json.Unmarshal(plain, &old); err != nil {
		return c, err
	}
	if len(old.Of) != len(old.Pods) {
		return c, fmt.Errorf("it has %d pods, and the objects of %d", len(old.Pods), len(old.Of))
	}
	for i := range old.Objects {
		old.Objects[i].Key = fmt.Sprint(i)
	}
	c.Objects = old.Objects
	for i, data := range old.Pods {
		p := podItem{UID: fmt.Sprint(i), Data: data}
		for _, at := range old.Of[i] {
			p.Of = append(p.Of, fmt.Sprint(at))
		}
		c.Pods = append(c.Pods, p)
	}
	return c, nil
}
