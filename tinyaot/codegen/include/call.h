/* How Python calls a step: as a plain C function of arrays; and as a function of Python, which looks
   whether the state that the step reaches is what it was, and then runs it. */
#include <stdint.h>
#include <string.h>

static void *word(const char *object, intptr_t at) { return *(void **)(object + at); }

/* A call by arrays: each object's first word behind its header, of `header` bytes, is the address
   of its data, as NumPy's C interface promises. */
struct call {
  int (*step)(void **pointers);
  int64_t header, arrays;
  char **objects;
  void **pointers;
};

int tinyaot_call(const struct call *c) {
  for (int64_t i = 0; i < c->arrays; i++) c->pointers[i] = word(c->objects[i], c->header);
  return c->step(c->pointers);
}

/* A step that does nothing, to time the rest of a call. */
int tinyaot_nothing(void **pointers) {
  (void)pointers;
  return 0;
}

/* ---- as a function of Python --------------------------------------------------------------------
   Python is known by functions of its stable interface, told once. Its lock is held while C looks,
   and let go while the step runs. */
static struct {
  void *(*item)(void *dict, void *key);
  int (*next)(void *dict, intptr_t *at, void **key, void **value);
  void *(*element)(void *list, intptr_t at);
  intptr_t (*elements)(void *list);
  void *(*attributes)(void *object, void *context); /* a new reference */
  void (*release)(void *);
  void (*forget_error)(void);
  void *(*number)(long);
  void *(*address)(void *number);
  void *(*unlock)(void);
  void (*lock)(void *);
  void *no, *none, *nothing; /* False, None and () */
  void *tensor, *ndarray;    /* classes */
  intptr_t header;           /* bytes before an object's own words; its class is the last of them */
  intptr_t data, chain, history, requires_grad, storage, handles; /* where slots are */
} python;

void tinyaot_python(const void *table) { memcpy(&python, table, sizeof python); }

/* What must hold: a read of `owner` at `key` gives `value`. */
enum { SLOT, ITEM, ENTRIES, ELEMENT, ELEMENTS, ATTRIBUTES };
struct fact {
  intptr_t kind;
  char *owner;
  void *key, *value;
};

/* Whether a dict has just these entries, in this order: pairs of a key and a value, 0 if any. */
static int has_entries(void *dict, void *const *pairs, intptr_t n) {
  void *key, *value;
  intptr_t at = 0;
  for (void *const *p = pairs; python.next(dict, &at, &key, &value); p += 2, n--)
    if (n == 0 || key != p[0] || (p[1] && value != p[1])) return 0;
  return n == 0;
}

static int holds(const struct fact *f) {
  switch (f->kind) {
    case SLOT: return word(f->owner, (intptr_t)f->key) == f->value;
    case ITEM: return python.item(f->owner, f->key) == f->value;
    case ENTRIES: return has_entries(f->owner, f->key, (intptr_t)f->value);
    case ELEMENT: return python.element(f->owner, (intptr_t)f->key) == f->value;
    case ELEMENTS: return python.elements(f->owner) == (intptr_t)f->value;
    case ATTRIBUTES: {
      void *found = python.attributes(f->owner, 0);
      if (found) python.release(found);
      return found == f->value;
    }
  }
  return 0;
}

/* An array behind its header, as NumPy's C interface lays it out. */
struct array {
  const char *data;
  int nd;
  const intptr_t *shape, *strides;
  void *base, *descr;
};

/* What an argument must be: a tensor that is no view, requires no grad, and has such an array, whose
   elements lie side by side. */
struct argument {
  void *descr;
  intptr_t nd;
  const intptr_t *shape, *strides;
  intptr_t bytes;
};

struct steady {
  const struct call *call;
  char **objects;               /* the arrays, but for those that a call gives */
  void **pointers;              /* to their data, and then to what the step has */
  const struct fact *facts;
  char *const *written;         /* histories of what the step writes */
  const intptr_t *given;        /* which arrays a call gives, those of its arguments first */
  const struct argument *arguments;
  const char *const *spans;     /* of memory that no argument may share: first byte, and end */
  intptr_t n_facts, n_written, n_arguments, n_spans;
};

enum { DONE, CHANGED, SAVED, FAILED };

static void *class_of(const char *object) {
  return word(object, python.header - (intptr_t)sizeof(void *));
}

static int fits(const struct argument *a, const char *x, const struct steady *s) {
  if (class_of(x) != python.tensor || word(x, python.chain) != python.nothing) return 0;
  char *object = word(x, python.data);
  if (class_of(object) != python.ndarray) return 0;
  if (word(word(x, python.history), python.requires_grad) != python.no) return 0;
  const struct array *v = (const void *)(object + python.header);
  if (v->descr != a->descr || v->nd != a->nd) return 0;
  for (int k = 0; k < v->nd; k++)
    if (v->shape[k] != a->shape[k] || v->strides[k] != a->strides[k]) return 0;
  for (intptr_t k = 0; k < s->n_spans; k++)
    if (v->data < s->spans[2 * k + 1] && s->spans[2 * k] < v->data + a->bytes) return 0;
  return 1;
}

static int look(const struct steady *s, char *const *args, intptr_t n) {
  if (n < s->n_arguments) return CHANGED;
  for (intptr_t i = 0; i < s->n_arguments; i++) {
    if (!fits(&s->arguments[i], args[i], s)) return CHANGED;
    for (intptr_t k = 0; k < i; k++)
      if (args[i] == args[k]) return CHANGED;
  }
  for (intptr_t i = 0; i < s->n_facts; i++)
    if (!holds(&s->facts[i])) {
      python.forget_error();
      return CHANGED;
    }
  return DONE;
}

/* Whether a value that the step writes may be saved for a backward. */
static int is_saved(const struct steady *s) {
  for (intptr_t i = 0; i < s->n_written; i++) {
    void *storage = word(s->written[i], python.storage);
    if (storage != python.none && python.elements(word(storage, python.handles))) return 1;
  }
  return 0;
}

static int run(const struct steady *s, char *const *args, intptr_t n) {
  const struct call *c = s->call;
  for (intptr_t i = 0; i < n; i++)
    s->objects[s->given[i]] = i < s->n_arguments ? word(args[i], python.data) : args[i];
  for (int64_t i = 0; i < c->arrays; i++) s->pointers[i] = word(s->objects[i], c->header);
  void *state = python.unlock();
  int failed = c->step(s->pointers);
  python.lock(state);
  return failed ? FAILED : DONE;
}

/* Three functions of Python. Their `self` is the address of a `struct steady`; they take arguments
   and then arrays, those that a call gives. The last runs whatever was saved. */
void *tinyaot_look(void *self, char *const *args, intptr_t n) {
  return python.number(look(python.address(self), args, n));
}

void *tinyaot_step(void *self, char *const *args, intptr_t n) {
  const struct steady *s = python.address(self);
  int found = look(s, args, n);
  if (found == DONE) found = is_saved(s) ? SAVED : run(s, args, n);
  return python.number(found);
}

void *tinyaot_step_anyway(void *self, char *const *args, intptr_t n) {
  return python.number(run(python.address(self), args, n));
}
