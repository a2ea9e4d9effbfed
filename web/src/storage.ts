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
  /** Whether the model has learned texts that were then dropped, because there were too many. */
  hasDropped?: boolean;
  /** The run whose model has learned the texts. */
  run: string;
  vector: number[];
  state: number[];
}

export interface UserStorage {
  /** Call a function while no other completer with this storage, such as one in another tab, changes the record. */
  exclusively<T>(change: () => Promise<T>): Promise<T>;
  read(): Promise<UserRecord | null>;
  /** Return the version of the record; 0 if there is none. */
  version(): Promise<number>;
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

  async version(): Promise<number> {
    return (await this.read())?.version ?? 0;
  }

  async write(record: UserRecord): Promise<void> {
    this.record = JSON.stringify(record);
  }

  async delete(): Promise<void> {
    this.record = null;
  }
}

const STORE = "users";
const USER = "user";
const VERSION = "version";  // its own entry, because every completion reads it

/** Storage in IndexedDB, one database for each name. */
export class BrowserStorage implements UserStorage {
  private database: IDBDatabase | null = null;

  constructor(private readonly name: string) {}

  async exclusively<T>(change: () => Promise<T>): Promise<T> {
    return navigator.locks.request(this.name, change);
  }

  async read(): Promise<UserRecord | null> {
    return (await this.request("readonly", (store) => store.get(USER))) ?? null;
  }

  async version(): Promise<number> {
    return (await this.request("readonly", (store) => store.get(VERSION))) ?? 0;
  }

  async write(record: UserRecord): Promise<void> {
    await this.request("readwrite", (store) => {
      store.put(record.version, VERSION);
      return store.put(record, USER);
    });
  }

  async delete(): Promise<void> {
    await this.request("readwrite", (store) => store.clear());
  }

  private async open(): Promise<IDBDatabase> {
    const opening = indexedDB.open(this.name, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
    const database = await result(opening);
    database.onclose = () => (this.database = null);  // the user has deleted the data of the site
    return database;
  }

  private async request<T>(mode: IDBTransactionMode, make: (store: IDBObjectStore) => IDBRequest<T>): Promise<T> {
    this.database ??= await this.open();
    const transaction = this.database.transaction(STORE, mode, { durability: "strict" });
    const completion = new Promise<void>((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error ?? new Error("IndexedDB: the transaction was aborted"));
    });
    const [value] = await Promise.all([result(make(transaction.objectStore(STORE))), completion]);
    return value;
  }
}

function result<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new Error("IndexedDB: the request failed"));
  });
}
