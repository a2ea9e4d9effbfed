/** Where the texts and the learned state of the user of a device are stored. */

export interface StoredText {
  text: string;
  /** When the user accepted it, in Unix seconds. */
  time: number;
}

/** Everything that is stored about the user; the state can be computed again from the texts. */
export interface UserRecord {
  format: number;
  /** A random number plus the number of writes, so that no version occurs twice. */
  version: number;
  texts: StoredText[];
  paused: boolean;
  /** The run whose model has learned the texts. */
  run: string;
  vector: number[];
  state: number[];
}

export interface UserStorage {
  /** Call a function while no other completer with this storage, such as one in another tab, changes the record. */
  exclusively<T>(change: () => Promise<T>): Promise<T>;
  read(): Promise<UserRecord | null>;
  write(record: UserRecord): Promise<void>;
  delete(): Promise<void>;
}

/** Storage that ends with the program, for tests and for Node. */
export class MemoryStorage implements UserStorage {
  private record: string | null = null;
  private last: Promise<unknown> = Promise.resolve();

  exclusively<T>(change: () => Promise<T>): Promise<T> {
    const result = this.last.then(change);
    this.last = result.catch(() => undefined);
    return result;
  }

  async read(): Promise<UserRecord | null> {
    return this.record === null ? null : (JSON.parse(this.record) as UserRecord);
  }

  async write(record: UserRecord): Promise<void> {
    this.record = JSON.stringify(record);
  }

  async delete(): Promise<void> {
    this.record = null;
  }
}

const STORE = "users";
const KEY = "user";

/** Storage in IndexedDB, one database for each name. */
export class BrowserStorage implements UserStorage {
  constructor(private readonly name: string) {}

  async exclusively<T>(change: () => Promise<T>): Promise<T> {
    return navigator.locks.request(this.name, change);
  }

  async read(): Promise<UserRecord | null> {
    return (await this.request("readonly", (store) => store.get(KEY))) ?? null;
  }

  async write(record: UserRecord): Promise<void> {
    await this.request("readwrite", (store) => store.put(record, KEY));
  }

  async delete(): Promise<void> {
    await this.request("readwrite", (store) => store.delete(KEY));
  }

  private async request<T>(mode: IDBTransactionMode, make: (store: IDBObjectStore) => IDBRequest<T>): Promise<T> {
    const opening = indexedDB.open(this.name, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
    const database = await result(opening);
    try {
      const transaction = database.transaction(STORE, mode, { durability: "strict" });
      const value = await result(make(transaction.objectStore(STORE)));
      await new Promise<void>((resolve, reject) => {
        transaction.oncomplete = () => resolve();
        transaction.onabort = () => reject(transaction.error ?? new Error("IndexedDB: the transaction was aborted"));
      });
      return value;
    } finally {
      database.close();
    }
  }
}

function result<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new Error("IndexedDB: the request failed"));
  });
}
