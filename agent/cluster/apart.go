package cluster

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-node/berth/internal/encoded"
	"github.com/berth-node/berth/internal/quantity"
)

// Partly is the error of a list of which all objects were read but these. To who does not look for it, it is an error
// of the server as any other.
type Partly struct {
	*apierrors.StatusError

	unread []runtime.Object
}

// Unread are the others, each of which is an error, too.
func (p *Partly) Unread() []runtime.Object { return p.unread }

// maxItems is how many objects of a list are looked at one by one: the memory of an empty one is a kilobyte.
const maxItems = 100_000

// The fields of all lists in protobuf.
const (
	fieldListMeta protowire.Number = 1
	fieldItems    protowire.Number = 2
)

// rawList is a list whose objects have not been decoded.
type rawList struct {
	metav1.ListMeta

	items [][]byte
}

// openList takes a list apart; false: it is none, or is too long for that.
func openList(e *encoded.Object) (l rawList, ok bool) {
	if e.Message == nil {
		var text struct {
			Metadata metav1.ListMeta   `json:"metadata"`
			Items    []json.RawMessage `json:"items"`
		}
		if json.Unmarshal(e.Text, &text) != nil || len(text.Items) > maxItems {
			return l, false
		}
		l.ListMeta = text.Metadata
		for _, one := range text.Items {
			l.items = append(l.items, one)
		}
		return l, true
	}
	for rest := e.Message; len(rest) > 0; {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return l, false
		}
		rest = rest[n:]
		if n = protowire.ConsumeFieldValue(number, kind, rest); n < 0 {
			return l, false
		}
		if kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(rest)
			switch number {
			case fieldListMeta:
				if l.Unmarshal(value) != nil {
					return l, false
				}
			case fieldItems:
				l.items = append(l.items, value)
			default:
			}
		}
		if rest = rest[n:]; len(l.items) > maxItems {
			return l, false
		}
	}
	return l, true
}

// apart reads the objects of a list one by one of which not all can be read, into the list. nil: it is no list of that
// kind, or has one whose name cannot be read, which would be gone then.
func apart(s *runtime.Scheme, by runtime.Decoder, e *encoded.Object, into runtime.Object, why error) *Partly {
	list, is := into.(metav1.ListInterface)
	kinds, _, err := s.ObjectKinds(into)
	if !is || err != nil || kinds[0] != e.Kind {
		return nil
	}
	to, err := meta.GetItemsPtr(into)
	if err != nil || len(e.Message)+len(e.Text) > long && crowded(e, reflect.TypeOf(into)) != nil {
		return nil
	}
	raw, ok := openList(e)
	if !ok {
		return nil
	}
	kind := e.Kind.GroupVersion().WithKind(strings.TrimSuffix(e.Kind.Kind, "List"))
	items := reflect.ValueOf(to).Elem()
	items.SetZero() // what was decoded before the first that cannot be read
	out := &Partly{StatusError: apierrors.NewInternalError(why)}
	for _, data := range raw.items {
		one := encoded.Object{Kind: kind, Text: data}
		if e.Message != nil {
			one = encoded.Object{Kind: kind, Message: data}
		}
		o := reflect.New(items.Type().Elem())
		if err := readOne(by, &one, o.Interface()); err != nil {
			named, ok := metadata(&one)
			if !ok {
				return nil
			}
			err = fmt.Errorf("read %s: %s", clip(kind.Kind), clip(err.Error()))
			out.unread = append(out.unread, &Unread{named, err})
			continue
		}
		items.Set(reflect.Append(items, o.Elem()))
	}
	list.SetResourceVersion(raw.ResourceVersion)
	list.SetContinue(raw.Continue)
	list.SetRemainingItemCount(raw.RemainingItemCount)
	return out
}

// readOne decodes an object of a list, which need not say of which kind it is.
func readOne(by runtime.Decoder, e *encoded.Object, into any) error {
	o, is := into.(runtime.Object)
	if !is {
		return fmt.Errorf("a %T is no object", into)
	}
	if err := harmfulAs(e, o); err != nil {
		return err
	}
	data := e.Text
	if e.Message != nil {
		text, err := (&runtime.Unknown{TypeMeta: typeMeta(e.Kind), Raw: e.Message}).Marshal()
		if err != nil {
			return err
		}
		data = append([]byte(quantity.ProtobufPrefix), text...)
	}
	got, _, err := by.Decode(data, &e.Kind, o)
	if err == nil && got != o {
		err = fmt.Errorf("it is a %T", got)
	}
	return err
}

func typeMeta(kind schema.GroupVersionKind) (out runtime.TypeMeta) {
	out.APIVersion, out.Kind = kind.ToAPIVersionAndKind()
	return out
}
